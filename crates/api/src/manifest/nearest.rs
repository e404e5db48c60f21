//! The right name for a misspelt one.

/// The candidate that was probably meant, if any is near enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .into_iter()
        .map(|c| {
            let other = c.to_lowercase();
            (strsim::damerau_levenshtein(&lower, &other), strsim::jaro_winkler(&lower, &other), c)
        })
        .filter(|(distance, likeness, c)| *distance <= (c.len().max(word.len()) / 4).max(1) || *likeness > 0.9)
        .min_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)))
        .map(|(_, _, c)| c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_its_neighbour_and_a_foreign_one_finds_none() {
        let names = ["promptsPerStep", "globalBatchSize", "overSampling"];
        assert_eq!(nearest("promptPerStep", names), Some("promptsPerStep"));
        assert_eq!(nearest("oversampling", names), Some("overSampling"));
        assert_eq!(nearest("color", names), None);
    }
}
