//! Values of options that more than one program has.

/// Checks the size of a disk cache before `barge mount` gets it.
pub(crate) fn size(text: &str) -> Result<String, String> {
    let digits = text
        .strip_suffix(['k', 'm', 'g', 't', 'K', 'M', 'G', 'T'])
        .unwrap_or(text);
    match digits.parse::<u64>() {
        Ok(1..) => Ok(text.into()),
        _ => Err("expected a size such as 500M or 20G".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_unit_at_most() {
        for good in ["1", "500M", "20g", "1T"] {
            assert_eq!(size(good).as_deref(), Ok(good));
        }
        for bad in ["", "G", "0", "0G", "1GG", "1.5G", "-1", "1 G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
