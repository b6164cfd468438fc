//! Entries of listings, and the findings of comparisons.
#![expect(clippy::disallowed_types, reason = "a manifest is a file of this host")]

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use haul::fault::{Code, Fault};
use haul::fs::entry::{Entry, Kind};
use haul::listing::verify::{Counts, Difference, Event};
use haul::printable;
use haul_report::date;
use serde_json::{Value, json};

use super::human::{binary, count_of};
use super::line::tell;

const LIST_SCHEMA: &str = "haul.list/1";
const VERIFY_SCHEMA: &str = "haul.verify/1";

/// Entries that are sorted; if there are more, the list is printed as it arrives.
const SORTED_MAX: usize = 1 << 18;

/// Prints a listing, sorted by path. Objects are printed as they arrive.
#[derive(Debug)]
pub(crate) struct Listing {
    as_json: bool,
    /// Entries that were not printed; `None` once there are too many to sort.
    waiting: Option<Vec<Entry>>,
}

impl Listing {
    pub(crate) fn new(as_json: bool) -> Self {
        Self {
            as_json,
            waiting: (!as_json).then(Vec::new),
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// Standard output is closed: the rest of the listing would be for nobody.
    pub(crate) fn add(&mut self, entry: Entry) -> Result<(), Fault> {
        let Some(waiting) = &mut self.waiting else {
            return print(&entry, self.as_json);
        };
        waiting.push(entry);
        if waiting.len() < SORTED_MAX {
            return Ok(());
        }
        tell(&format!(
            "more than {SORTED_MAX} entries: they are not sorted"
        ));
        self.finish()
    }

    /// Prints what was not printed.
    ///
    /// # Errors
    /// As [`Listing::add`].
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        let mut waiting = self.waiting.take().unwrap_or_default();
        // What is in a directory follows it.
        waiting.sort_by(|one, other| one.path.components().cmp(other.path.components()));
        waiting
            .iter()
            .try_for_each(|entry| print(entry, self.as_json))
    }
}

fn print(entry: &Entry, as_json: bool) -> Result<(), Fault> {
    let line = if as_json {
        entry_object(entry).to_string()
    } else {
        entry_line(entry)
    };
    writeln!(io::stdout().lock(), "{line}").map_err(|error| {
        Fault::new(
            Code::Other,
            format!("cannot write to standard output: {error}"),
        )
    })
}

/// Prints what a listing could not examine.
///
/// # Errors
/// As [`Listing::add`].
pub(crate) fn failure(text: &str, as_json: bool) -> Result<(), Fault> {
    if as_json {
        super::print_line(&json!({ "schema": LIST_SCHEMA, "event": "failed", "text": text }));
    } else {
        tell(text);
    }
    Ok(())
}

fn entry_line(entry: &Entry) -> String {
    let (stat, kind) = (&entry.stat, letter(&entry.kind));
    let path = &entry.path;
    let target = match &entry.kind {
        Kind::Symlink(target) => format!(" -> {}", printable(target)),
        Kind::HardLink(first) => format!(" = {first}"),
        _ => String::new(),
    };
    let (size, time) = (stat.size, time(stat.modified.seconds));
    format!(
        "{kind}{} {size:>14} {time} {path}{target}",
        rights(stat.mode)
    )
}

fn letter(kind: &Kind) -> char {
    match kind {
        Kind::File | Kind::HardLink(_) => '-',
        Kind::Directory => 'd',
        Kind::Symlink(_) => 'l',
        Kind::Special => 's',
    }
}

/// Returns permission bits as ls(1) prints them.
fn rights(mode: u32) -> String {
    let class = |shift: u32, special: bool, set: char| {
        let bits = mode >> shift;
        let execute = match (bits & 1 != 0, special) {
            (true, true) => set,
            (false, true) => set.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        };
        let read = if bits & 4 != 0 { 'r' } else { '-' };
        let write = if bits & 2 != 0 { 'w' } else { '-' };
        [read, write, execute]
    };
    let classes = [
        class(6, mode & 0o4000 != 0, 's'),
        class(3, mode & 0o2000 != 0, 's'),
        class(0, mode & 0o1000 != 0, 't'),
    ];
    classes.concat().into_iter().collect()
}

/// Returns seconds since 1970 as a date and time in UTC.
fn time(seconds: i64) -> String {
    u64::try_from(seconds).map_or_else(|_| format!("{:20}", "before 1970"), date::seconds)
}

/// Returns the word for the kind of an entry in JSON.
pub(super) const fn kind_of(entry: &Entry) -> &'static str {
    match &entry.kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink(_) => "symlink",
        Kind::HardLink(_) => "hard_link",
        Kind::Special => "special",
    }
}

/// Returns the object of an entry.
pub(crate) fn entry_object(entry: &Entry) -> Value {
    let stat = &entry.stat;
    let kind = kind_of(entry);
    let mut object = json!({
        "schema": LIST_SCHEMA, "event": "entry", "kind": kind, "size": stat.size,
        "allocated": stat.allocated, "modified_s": stat.modified.seconds,
        "modified_ns": stat.modified.nanos, "mode": stat.mode, "uid": stat.uid, "gid": stat.gid,
    });
    add_bytes(&mut object, "path", entry.path.as_bytes());
    match &entry.kind {
        Kind::Symlink(target) => add_bytes(&mut object, "target", target),
        Kind::HardLink(first) => add_bytes(&mut object, "target", first.as_bytes()),
        _ => {}
    }
    object
}

/// Adds bytes as text, and where they are no text also in base64.
fn add_bytes(object: &mut Value, name: &str, bytes: &[u8]) {
    object[name] = json!(String::from_utf8_lossy(bytes));
    if std::str::from_utf8(bytes).is_err() {
        object[format!("{name}_b64")] = json!(STANDARD.encode(bytes));
    }
}

/// Prints a finding of a comparison about `path`.
pub(crate) fn finding(event: &Event<'_>, path: &[u8], as_json: bool) {
    let difference = match event {
        Event::Same(..) => return,
        Event::Failed { text, .. } if as_json => {
            let object = json!({ "schema": VERIFY_SCHEMA, "event": "failed", "text": text });
            return super::print_line(&object);
        }
        Event::Failed { text, .. } => return tell(text),
        Event::Different(_, difference) => difference,
    };
    if !as_json {
        // As in `print_line`.
        let _ = writeln!(
            io::stdout().lock(),
            "{}: {}",
            printable(path),
            difference_text(difference)
        );
        return;
    }
    let mut object = json!({ "schema": VERIFY_SCHEMA, "event": "different" });
    add_bytes(&mut object, "path", path);
    object["difference"] = json!(match difference {
        Difference::Missing => "missing",
        Difference::Kind => "kind",
        Difference::Target => "target",
        Difference::Size { .. } => "size",
        Difference::Content(_) => "content",
    });
    match difference {
        Difference::Size {
            source,
            destination,
        } => {
            object["source_bytes"] = json!(source);
            object["destination_bytes"] = json!(destination);
        }
        Difference::Content(ranges) => {
            let ranges: Vec<_> = ranges
                .iter()
                .map(|range| [range.start, range.end])
                .collect();
            object["ranges"] = json!(ranges);
        }
        Difference::Missing | Difference::Kind | Difference::Target => {}
    }
    super::print_line(&object);
}

fn difference_text(difference: &Difference) -> String {
    match difference {
        Difference::Missing => "missing".to_owned(),
        Difference::Kind => "of another kind".to_owned(),
        Difference::Target => "a link with another target".to_owned(),
        Difference::Size {
            source,
            destination,
        } => format!("{destination} bytes instead of {source}"),
        Difference::Content(ranges) if ranges.is_empty() => "changed meanwhile".to_owned(),
        Difference::Content(ranges) => {
            let range = |range: &std::ops::Range<u64>| format!("{}-{}", range.start, range.end - 1);
            let ranges: Vec<_> = ranges.iter().map(range).collect();
            format!("differs in bytes {}", ranges.join(", "))
        }
    }
}

/// Prints the counts of a comparison.
pub(crate) fn verified(counts: &Counts, as_json: bool, is_quiet: bool) {
    if as_json {
        super::print_line(&json!({
            "schema": VERIFY_SCHEMA, "event": "end", "ok": counts.fault().is_none(),
            "same": counts.same, "same_bytes": counts.bytes, "different": counts.different,
            "missing": counts.missing, "extra": counts.extra, "special": counts.special,
            "failures": counts.failures,
        }));
    }
    if !is_quiet {
        tell(&format!(
            "{} the same ({}), {}, {} missing, {} only at the destination",
            count_of(counts.same, "entry is", "entries are"),
            binary(counts.bytes),
            count_of(counts.different, "differs", "differ"),
            count_of(counts.missing, "is", "are"),
            count_of(counts.extra, "is", "are")
        ));
    }
}

/// A file of hashes, in the form that `b3sum --check` reads.
pub(crate) struct Manifest(BufWriter<File>);

impl Manifest {
    /// Makes the file, or empties the one that exists.
    pub(crate) fn create(path: &Path) -> Result<Self, Fault> {
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let file = File::create(path)
            .map_err(|error| Fault::file(&format!("cannot write '{shown}'"), &error))?;
        Ok(Self(BufWriter::new(file)))
    }

    /// Adds a file.
    pub(crate) fn add(&mut self, path: &[u8], hash: &[u8; 32]) -> Result<(), Fault> {
        let line = manifest_line(path, hash).ok_or_else(|| {
            let text = format!(
                "the manifest lacks '{}': b3sum reads only names in UTF-8",
                printable(path)
            );
            Fault::new(Code::Other, text)
        })?;
        self.0
            .write_all(line.as_bytes())
            .map_err(|error| unwritten(&error))
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> Result<(), Fault> {
        self.0.flush().map_err(|error| unwritten(&error))
    }
}

fn unwritten(error: &io::Error) -> Fault {
    Fault::file("cannot write the manifest", error)
}

/// Returns a line of a manifest; b3sum escapes `\` and line ends, and cannot read names that are no
/// text.
fn manifest_line(path: &[u8], hash: &[u8; 32]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    let escaped = path
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r");
    let mark = if escaped == path { "" } else { "\\" };
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{mark}{hash}  {escaped}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_printed_as_ls_does() {
        assert_eq!(rights(0o644), "rw-r--r--");
        assert_eq!(rights(0o7755), "rwsr-sr-t");
        assert_eq!(rights(0o4644), "rwSr--r--");
    }

    #[test]
    fn a_manifest_escapes_what_b3sum_escapes() {
        let hash = [0xab; 32];
        let hex = "ab".repeat(32);
        assert_eq!(manifest_line(b"a b", &hash), Some(format!("{hex}  a b\n")));
        let escaped = Some(format!("\\{hex}  a\\n\\\\\n"));
        assert_eq!(manifest_line(b"a\n\\", &hash), escaped);
        assert_eq!(manifest_line(b"\xff", &hash), None);
    }
}
