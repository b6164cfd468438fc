//! Printing a peer's text.

/// Escapes what could control a terminal: control, format and direction characters, and bytes that
/// are not UTF-8.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let steers = c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
            if steers {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Cuts a peer's text to what is shown: more than a screen explains nothing.
pub fn abridged(words: &str) -> &str {
    /// Room for the longest path and what is wrong with it.
    const CHARS_MAX: usize = 6_000;
    let end = words.char_indices().nth(CHARS_MAX);
    end.map_or(words, |(end, _)| &words[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_names_hold_no_control_characters() {
        let hostile = b"a\x1b[2Jb\x07\xc2\x9b\xff\xe2\x80\xaec\n";
        let text = printable(hostile);
        assert!(
            text.chars().all(|c| !c.is_control() && c != '\u{202e}'),
            "{text}"
        );
        assert_eq!(text, "a\\u{1b}[2Jb\\u{7}\\u{9b}\\xff\\u{202e}c\\n");
    }
}
