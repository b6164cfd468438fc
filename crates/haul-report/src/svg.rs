//! What every picture shares: colours, style, words.

/// Paul Tol's "bright" and "muted" schemes: told apart by people who see no red or green, and on
/// light and dark ground.
pub const COLOURS: [&str; 10] = [
    "#4477aa", "#66ccee", "#228833", "#99bb44", "#ee6677", "#aa3377", "#dd9944", "#885533",
    "#6655cc", "#888888",
];
/// Light and dark ground.
pub const STYLE: &str = "<style>\
svg{--ink:#1c1c1c;--paper:#ffffff;--line:#d0d0d0}\
@media(prefers-color-scheme:dark){svg{--ink:#e8e8e8;--paper:#161616;--line:#444444}}\
text{font:13px sans-serif;fill:#1c1c1c;fill:var(--ink)}\
.title{font-size:16px;font-weight:bold}.panel{font-weight:bold}.small,.value{font-size:11px}\
.value{stroke:#ffffff;stroke:var(--paper);stroke-width:3px;paint-order:stroke}\
.paper{fill:#ffffff;fill:var(--paper)}\
.grid{stroke:#d0d0d0;stroke:var(--line);stroke-width:1}\
.rate{stroke:#1c1c1c;stroke:var(--ink);stroke-width:1;stroke-dasharray:5 4}\
</style>";

/// Words at a place.
#[must_use]
pub fn text(x: f64, y: f64, class: &str, anchor: &str, words: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>\n",
        escaped(words)
    )
}

/// Words that cannot break a picture or a page.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_break_the_picture() {
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
