//! Suggestions for mistyped names.

/// Returns the name in `known` that is most similar to `given`, if any is similar enough, for
/// messages about unknown names. Ignores case.
pub fn suggest<T: AsRef<str>>(given: &str, known: impl IntoIterator<Item = T>) -> Option<T> {
    // Accepts one wrong letter in three, or two transposed letters.
    const MIN_SIMILARITY: f64 = 0.6;
    let given = given.to_lowercase();
    let likeness =
        |known: &str| strsim::normalized_damerau_levenshtein(&given, &known.to_lowercase());
    known
        .into_iter()
        .map(|known| (likeness(known.as_ref()), known))
        .filter(|(how, _)| *how > MIN_SIMILARITY)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_meant_if_it_is_near() {
        let known = ["source", "squash", "read-only"];
        for (given, nearest) in [
            ("sorce", Some("source")),
            ("Source", Some("source")),
            ("suqash", Some("squash")),
            ("readonly", Some("read-only")),
            ("tls", None),
            ("", None),
        ] {
            assert_eq!(suggest(given, known), nearest, "{given}");
        }
    }
}
