//! One HTML file with everything in it: no script, no picture, no style from elsewhere.

use crate::svg::escaped;

const STYLE: &str = "<style>\
:root{color-scheme:light dark;--ink:#1c1c1c;--paper:#ffffff;--line:#d0d0d0;--soft:#f4f5f7;--good:#1a7a2e;--bad:#b3261e;--quiet:#666}\
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--paper:#161616;--line:#444;--soft:#202124;--good:#6fce82;--bad:#ff8a80;--quiet:#aaa}}\
*{box-sizing:border-box}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:960px;margin:2em auto;padding:0 1em}\
h1{font-size:1.6em;margin:0 0 .2em}h2{font-size:1.2em;margin-top:2.2em;border-top:1px solid var(--line);padding-top:1em}\
p{margin:.5em 0}nav a{margin-right:1.2em}a{color:inherit}\
svg{width:100%;height:auto;display:block;margin:.8em 0}\
svg text{font:13px system-ui,sans-serif;fill:var(--ink)}svg .panel{font-weight:bold}svg .small{font-size:11.5px}\
svg .onDark{fill:#fff;font-size:11.5px}svg .onLight{fill:#1c1c1c;font-size:11.5px}\
svg .paper{fill:var(--paper)}svg .grid{stroke:var(--line);stroke-width:1}\
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}svg .dash{stroke-dasharray:7 4}svg .band{opacity:.18;stroke:none}\
table{border-collapse:collapse;margin:.8em 0;font-size:.9em;font-variant-numeric:tabular-nums}\
td,th{padding:.25em .9em .25em 0;text-align:right;vertical-align:top}th{border-bottom:1px solid var(--line);font-weight:600}\
tr+tr td{border-top:1px solid var(--soft)}\
td:first-child,th:first-child,.words td,.words th{text-align:left}\
.yes{color:var(--good)}.no{color:var(--bad)}.quiet{color:var(--quiet)}\
.lead{background:var(--soft);border-left:4px solid #4477aa;padding:.6em 1em;margin:1em 0}\
.cards{display:flex;flex-wrap:wrap;gap:.8em;margin:1em 0}.card{background:var(--soft);padding:.6em 1em;min-width:9em}\
.card b{display:block;font-size:1.35em}.card span{color:var(--quiet);font-size:.85em}\
code,pre{font-size:.85em}pre{overflow-x:auto;white-space:pre-wrap;background:var(--soft);padding:.6em 1em}\
summary{cursor:pointer;color:var(--quiet)}.scroll{overflow-x:auto}\
@media print{:root{--ink:#000;--paper:#fff;--line:#bbb;--soft:#f4f5f7;--good:#1a7a2e;--bad:#b3261e;--quiet:#444}\
body{max-width:none;margin:0;font-size:11pt}nav{display:none}svg,table,.lead,.cards{break-inside:avoid}h2{break-after:avoid}\
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}\
</style>";

/// A page that grows from top to bottom.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    sections: Vec<(String, String)>,
    body: String,
}

impl Page {
    /// A page with nothing but its title, and a line about it.
    #[must_use]
    pub fn new(title: &str, about: &str) -> Self {
        Self {
            title: title.into(),
            sections: Vec::new(),
            body: format!("<p class=\"quiet\">{}</p>\n", escaped(about)),
        }
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str) {
        let id = format!("s{}", self.sections.len() + 1);
        self.body += &format!("<h2 id=\"{id}\">{}</h2>\n", escaped(title));
        self.sections.push((id, title.into()));
    }

    /// A paragraph.
    pub fn text(&mut self, words: &str) {
        self.body += &format!("<p>{}</p>\n", escaped(words));
    }

    /// A paragraph of less weight.
    pub fn note(&mut self, words: &str) {
        self.body += &format!("<p class=\"quiet\">{}</p>\n", escaped(words));
    }

    /// What the reader is to take home.
    pub fn lead(&mut self, words: &str) {
        self.body += &format!("<p class=\"lead\">{}</p>\n", escaped(words));
    }

    /// A few figures, each with what it is.
    pub fn cards(&mut self, cards: &[(String, String)]) {
        self.body += "<div class=\"cards\">";
        for (figure, what) in cards {
            self.body += &format!(
                "<div class=\"card\"><b>{}</b><span>{}</span></div>",
                escaped(figure),
                escaped(what)
            );
        }
        self.body += "</div>\n";
    }

    /// A command as it is typed.
    pub fn command(&mut self, line: &str) {
        self.body += &format!("<pre>{}</pre>\n", escaped(line));
    }

    /// A picture, which is SVG.
    pub fn picture(&mut self, svg: &str) {
        self.body += svg;
    }

    /// A table: what the columns are, and the rows. Its first column is words, the others are
    /// figures.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.body += &table(head, rows, "");
    }

    /// A table of words.
    pub fn words(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.body += &table(head, rows, " class=\"words\"");
    }

    /// A table that is shown when asked for.
    pub fn folded(&mut self, summary: &str, head: &[&str], rows: &[Vec<String>]) {
        self.body += &format!(
            "<details><summary>{}</summary>{}</details>\n",
            escaped(summary),
            table(head, rows, "")
        );
    }

    /// The file.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        let link =
            |(id, title): &(String, String)| format!("<a href=\"#{id}\">{}</a>", escaped(title));
        let nav: String = if self.sections.len() > 2 {
            let links: Vec<String> = self.sections.iter().map(link).collect();
            format!("<nav>{}</nav>\n", links.join(" "))
        } else {
            String::new()
        };
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n{STYLE}\n</head>\n\
             <body>\n<h1>{title}</h1>\n{nav}{}</body>\n</html>\n",
            self.body
        )
    }
}

fn table(head: &[&str], rows: &[Vec<String>], class: &str) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells
            .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)))
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    let mut html = format!("<div class=\"scroll\"><table{class}>\n");
    html += &cells("th", &mut head.iter().copied());
    for row in rows {
        html += &cells("td", &mut row.iter().map(String::as_str));
    }
    html + "</table></div>\n"
}

/// Values as a line of a CSV file (RFC 4180).
#[must_use]
pub fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| {
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.clone()
        }
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_from_elsewhere_and_words_cannot_break_it() {
        let mut page = Page::new("<title>", "it's & about");
        page.section("One");
        page.table(&["a", "b"], &[vec!["<1>".into(), "2".into()]]);
        page.section("Two");
        page.section("Three");
        let html = page.html();
        assert!(html.contains("&lt;title&gt;") && html.contains("&lt;1&gt;"));
        assert!(html.contains("href=\"#s3\""));
        for foreign in ["<script", "src=", "http", "@import", "url("] {
            assert!(!html.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn csv_is_quoted_where_it_must_be() {
        let cells = ["a", "b,c", "d\"e", ""].map(String::from);
        assert_eq!(csv_line(&cells), "a,\"b,c\",\"d\"\"e\",\r\n");
    }
}
