//! Patterns with `*` for any characters.

/// Whether all of `text` fits. The time is bounded by the product of both lengths, whatever the pattern.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // Where to go on when what follows the last star does not fit: the star then takes one byte more.
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
