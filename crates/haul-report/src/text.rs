//! Text that must not be longer than its place.

/// Returns the longest beginning of `text` of at most `most` bytes and whole characters.
#[must_use]
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_characters_are_kept() {
        let cuts = [0, 1, 2, 3, 4, 9].map(|most| cut("a\u{e9}b", most));
        assert_eq!(cuts, ["", "a", "a", "a\u{e9}", "a\u{e9}b", "a\u{e9}b"]);
    }
}
