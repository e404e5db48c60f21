//! What every transport must do. Run over threads and over processes by the tests beside this folder.

use comm::Group;
use tensor::{Backend, Comm, CpuBackend, DType, Element, ReferenceBackend, Stream, Tag, Tensor};

const S: Stream = Stream::COMPUTE;

/// Numbers whose sum depends on the order in which they are added.
pub fn addend(rank: usize, i: usize) -> f64 {
    let scale = [1.0, 3.0e16, 1.0e-3, -3.0e16][(rank + i) % 4];
    scale * (1.0 + (rank * 31 + i * 7 % 13) as f64 / 17.0)
}

fn tensor<T: Element>(be: &dyn Backend, data: &[T]) -> Tensor {
    Tensor::from_slice(be, data, &[data.len()], Tag::Work).unwrap()
}

fn moves(be: &dyn Backend, g: &dyn Comm) {
    let (me, n) = (g.rank(), g.size());
    // all_gather, also in place, also of types no sum knows
    for len in [1usize, 3, 1000] {
        let mine: Vec<i64> = (0..len).map(|i| (me * 10_000 + i) as i64).collect();
        let all = Tensor::empty(be, DType::I64, &[n * len], Tag::Work).unwrap();
        g.all_gather(S, &tensor(be, &mine), &all).unwrap();
        let want: Vec<i64> = (0..n).flat_map(|r| (0..len).map(move |i| (r * 10_000 + i) as i64)).collect();
        assert_eq!(all.to_vec::<i64>(be).unwrap(), want);
        let place = Tensor::zeros(be, DType::F32, &[n * len], Tag::Work).unwrap();
        let own = place.flat(me * len, len).unwrap();
        own.write::<f32>().unwrap().fill(me as f32);
        g.all_gather(S, &own, &place).unwrap();
        let want: Vec<f32> = (0..n).flat_map(|r| vec![r as f32; len]).collect();
        assert_eq!(place.to_vec::<f32>(be).unwrap(), want);
    }
    // all_to_all_v: rank r sends (r + to) % 3 elements to `to`, so some pieces are empty
    let count = |from: usize, to: usize| (from + to) % 3;
    let send: Vec<u8> = (0..n).flat_map(|to| vec![(10 * me + to) as u8; count(me, to)]).collect();
    let sc: Vec<usize> = (0..n).map(|to| count(me, to)).collect();
    let rc: Vec<usize> = (0..n).map(|from| count(from, me)).collect();
    let recv = Tensor::empty(be, DType::U8, &[rc.iter().sum()], Tag::Work).unwrap();
    g.all_to_all_v(S, &tensor(be, &send), &sc, &recv, &rc).unwrap();
    let want: Vec<u8> = (0..n).flat_map(|from| vec![(10 * from + me) as u8; count(from, me)]).collect();
    assert_eq!(recv.to_vec::<u8>(be).unwrap(), want);
    // broadcast from everyone
    for root in 0..n {
        let t = tensor(be, &[me as f64, (me + 1) as f64]);
        g.broadcast(S, &t, root).unwrap();
        assert_eq!(t.to_vec::<f64>(be).unwrap(), [root as f64, (root + 1) as f64]);
    }
    // a ring of messages, two in flight
    if n > 1 {
        let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
        for k in 0..2 {
            g.send(S, &tensor(be, &[me as i32, k]), next).unwrap();
        }
        g.barrier().unwrap();
        for k in 0..2 {
            let t = Tensor::empty(be, DType::I32, &[2], Tag::Work).unwrap();
            g.recv(S, &t, previous).unwrap();
            assert_eq!(t.to_vec::<i32>(be).unwrap(), [previous as i32, k]);
        }
    }
    // host bytes of different lengths, none included
    let blobs = g.all_gather_bytes(&vec![me as u8; me]).unwrap();
    assert_eq!(blobs, (0..n).map(|r| vec![r as u8; r]).collect::<Vec<_>>());
    let blob = if me == n - 1 { b"plan".to_vec() } else { Vec::new() };
    assert_eq!(g.broadcast_bytes(blob, n - 1).unwrap(), b"plan");
    g.barrier().unwrap();
}

/// Every sum equals the sum in rank order, to the bit. Returns the bits of one, to compare transports.
fn sums(be: &dyn Backend, g: &dyn Comm) -> Vec<u64> {
    let (me, n) = (g.rank(), g.size());
    let mut bits = Vec::new();
    for len in [1usize, 24, 8192] {
        let len = len.next_multiple_of(n);
        let want: Vec<u64> =
            (0..len).map(|i| (1..n).fold(addend(0, i), |sum, r| sum + addend(r, i)).to_bits()).collect();
        let mine: Vec<f64> = (0..len).map(|i| addend(me, i)).collect();
        let t = tensor(be, &mine);
        g.all_reduce(be, S, &t).unwrap();
        let got: Vec<u64> = t.to_vec::<f64>(be).unwrap().into_iter().map(f64::to_bits).collect();
        assert_eq!(got, want, "all_reduce of {len}");
        let piece = Tensor::empty(be, DType::F64, &[len / n], Tag::Work).unwrap();
        g.reduce_scatter(be, S, &tensor(be, &mine), &piece).unwrap();
        let got: Vec<u64> = piece.to_vec::<f64>(be).unwrap().into_iter().map(f64::to_bits).collect();
        assert_eq!(got, want[me * len / n..][..len / n], "reduce_scatter of {len}");
        bits = want;
    }
    bits
}

/// The same in f32, as training does it.
fn sums_f32(be: &dyn Backend, g: &dyn Comm) {
    let (me, n) = (g.rank(), g.size());
    for len in [1usize, 24, 8192] {
        let len = len.next_multiple_of(n);
        let x = |rank: usize, i: usize| addend(rank, i) as f32;
        let want: Vec<u32> = (0..len).map(|i| (1..n).fold(x(0, i), |sum, r| sum + x(r, i)).to_bits()).collect();
        let bits = |t: &Tensor| t.to_vec::<f32>(be).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let mine: Vec<f32> = (0..len).map(|i| x(me, i)).collect();
        let piece = Tensor::empty(be, DType::F32, &[len / n], Tag::Work).unwrap();
        g.reduce_scatter(be, S, &tensor(be, &mine), &piece).unwrap();
        assert_eq!(bits(&piece), want[me * len / n..][..len / n], "reduce_scatter of {len}");
        let t = tensor(be, &mine);
        g.all_reduce(be, S, &t).unwrap();
        assert_eq!(bits(&t), want, "all_reduce of {len}");
    }
}

/// The whole suite on a world of four ranks: the world itself, its two kinds of subgroups, and both at once.
pub fn run(world: Group) -> Vec<u64> {
    let be = ReferenceBackend::new();
    moves(&be, &world);
    let bits = sums(&be, &world);
    let cpu = CpuBackend::new(1);
    sums_f32(&cpu, &world);
    let me = world.world_rank();
    let tp = world.split("tp", &[me / 2 * 2, me / 2 * 2 + 1]).unwrap();
    let dp = world.split("dp", &[me % 2, me % 2 + 2]).unwrap();
    assert_eq!((tp.rank(), dp.rank()), (me % 2, me / 2));
    for group in [&tp, &dp] {
        moves(&be, group);
        sums(&be, group);
        sums_f32(&cpu, group);
    }
    // Two groups may be used from two threads at once.
    std::thread::scope(|s| {
        s.spawn(|| (0..50).for_each(|_| tp.barrier().unwrap()));
        s.spawn(|| (0..50).for_each(|_| dp.barrier().unwrap()));
    });
    world.barrier().unwrap();
    bits
}
