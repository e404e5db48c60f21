/// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
/// A draw is a pure function of (seed, stream, index): no state, so neither layout nor scheduling can change it.
#[derive(Clone, Copy, Debug)]
pub struct Philox {
    key: [u32; 2],
    stream: u64,
}

impl Philox {
    pub fn new(seed: u64, stream: u64) -> Self {
        Philox { key: [seed as u32, (seed >> 32) as u32], stream }
    }

    /// A generator for a named thing, for instance a parameter.
    pub fn named(seed: u64, name: &str) -> Self {
        // FNV-1a, 64 bit: stable, and names are few.
        let h = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Philox::new(seed, h)
    }

    /// Four independent words for this counter.
    pub fn block(&self, counter: u64) -> [u32; 4] {
        let mut c = [counter as u32, (counter >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32];
        let mut k = self.key;
        for _ in 0..10 {
            let a = u64::from(c[0]) * 0xD251_1F53;
            let b = u64::from(c[2]) * 0xCD9E_8D57;
            c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
            k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
        }
        c
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform(&self, index: u64) -> f64 {
        let b = self.block(index);
        let bits = (u64::from(b[0]) << 32 | u64::from(b[1])) >> 11;
        bits as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&self, index: u64) -> f64 {
        let b = self.block(index);
        let u = |hi: u32, lo: u32| ((u64::from(hi) << 32 | u64::from(lo)) >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        let (u1, u2) = (1.0 - u(b[0], b[1]), u(b[2], b[3]));
        (-2.0 * u1.ln()).sqrt() * (std::f64::consts::TAU * u2).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_test_vectors() {
        // Known answers of Random123 for philox4x32-10.
        assert_eq!(Philox::new(0, 0).block(0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let all = Philox { key: [u32::MAX; 2], stream: u64::MAX };
        assert_eq!(all.block(u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let g = Philox::named(7, "w");
        let n = 20_000;
        let x: Vec<f64> = (0..n).map(|i| g.normal(i)).collect();
        let mean = x.iter().sum::<f64>() / n as f64;
        let var = x.iter().map(|v| v * v).sum::<f64>() / n as f64 - mean * mean;
        assert!(mean.abs() < 0.03 && (var - 1.0).abs() < 0.05, "{mean} {var}");
    }
}
