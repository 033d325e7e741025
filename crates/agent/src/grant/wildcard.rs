//! Patterns with `*` for any characters.

/// Whether the whole `text` matches. The time is at most proportional to the product of both lengths, for every pattern.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // Where to continue if the text does not match after the last star: the star then matches one more byte.
    let mut retry: Option<(usize, usize)> = None;
    while position < text.len() {
        match (pattern.get(at), &mut retry) {
            (Some(b'*'), _) => {
                at += 1;
                retry = Some((at, position));
            }
            (Some(byte), _) if *byte == text[position] => {
                at += 1;
                position += 1;
            }
            (_, Some((after_star, start))) => {
                *start += 1;
                (at, position) = (*after_star, *start);
            }
            (_, None) => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}
