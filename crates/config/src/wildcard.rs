//! Patterns with `*` for any characters and `?` for one, as users know them from file names.

/// Whether the whole `text` matches. The time is bounded by the product of both lengths, for any pattern.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    matches_by(pattern, text, |pattern, text| pattern == text)
}

pub(crate) fn matches_ignoring_case(pattern: &[u8], text: &[u8]) -> bool {
    matches_by(pattern, text, |pattern, text| {
        pattern.eq_ignore_ascii_case(text)
    })
}

pub(crate) fn has_wildcards(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

fn matches_by(pattern: &[u8], text: &[u8], same: impl Fn(&u8, &u8) -> bool) -> bool {
    let (mut at, mut position) = (0, 0);
    // Where to continue if the part after the last star does not match: the star then takes one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while position < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at + 1, position));
                at += 1;
            }
            Some(byte) if *byte == b'?' || same(byte, &text[position]) => {
                at += 1;
                position += 1;
            }
            _ => match &mut retry {
                Some((after_star, start)) => {
                    *start += 1;
                    (at, position) = (*after_star, *start);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("*", "ANY", true),
            ("A", "A", true),
            ("A", "a", false),
            ("A", "AB", false),
            ("A?", "AB", true),
            ("A?", "A", false),
            ("DB_*", "DB_", true),
            ("DB_*", "DB_USER", true),
            ("DB_*", "XDB_USER", false),
            ("*_KEY", "A_KEY_KEY", true),
            ("*_KEY", "A_KEY_", false),
            ("*A*B*", "xAyBz", true),
            ("*A*B*", "xByAz", false),
            ("**", "x", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
        assert!(matches_ignoring_case(b"aws_*", b"AWS_PROFILE"));
        let long = vec![b'a'; 20_000];
        assert!(!matches(b"*a*a*a*a*b", &long));
    }
}
