//! OpenMetrics text 1.0, read strictly: what is no family, no sample or out of order is refused,
//! with its line.

#![allow(
    unreachable_pub,
    clippy::allow_attributes,
    reason = "tests are crates of their own"
)]

use std::collections::{BTreeMap, BTreeSet};

/// Samples by name and labels, as they stand in the text.
pub type Samples = BTreeMap<(String, Vec<(String, String)>), f64>;

#[derive(Default)]
struct Family {
    name: String,
    kind: Option<String>,
    unit: Option<String>,
    has_help: bool,
    has_samples: bool,
}

/// Reads a whole exposition.
pub fn parse(text: &str) -> Result<Samples, String> {
    let body = text
        .strip_suffix("# EOF\n")
        .ok_or("it does not end with # EOF")?;
    let mut family = Family::default();
    let mut names = BTreeSet::new();
    let mut samples = Samples::new();
    for line in body.lines() {
        let judged = match line.strip_prefix("# ") {
            Some(meta) => describe(meta, &mut family, &mut names),
            None => sample(line, &mut family, &mut samples),
        };
        judged.map_err(|why| format!("{why}: {line}"))?;
    }
    finish(&family)?;
    Ok(samples)
}

fn describe(meta: &str, family: &mut Family, names: &mut BTreeSet<String>) -> Result<(), String> {
    let mut words = meta.splitn(3, ' ');
    let (Some(what), Some(name), Some(value)) = (words.next(), words.next(), words.next()) else {
        return Err("a descriptor of three words".to_owned());
    };
    if name != family.name || family.has_samples {
        finish(family)?;
        if !is_name(name) || !names.insert(name.to_owned()) {
            return Err("a name that is none, or that was there before".to_owned());
        }
        *family = Family {
            name: name.to_owned(),
            ..Family::default()
        };
    }
    let is_new = match what {
        "HELP" => !std::mem::replace(&mut family.has_help, true),
        "TYPE" => family.kind.replace(value.to_owned()).is_none(),
        "UNIT" => family.unit.replace(value.to_owned()).is_none(),
        _ => false,
    };
    match what {
        "TYPE" if !["counter", "gauge", "info"].contains(&value) => Err("a type of another"),
        "UNIT" if !name.ends_with(&format!("_{value}")) => Err("a name without its unit"),
        _ if !is_new => Err("a descriptor that is unknown or was there before"),
        _ => Ok(()),
    }
    .map_err(str::to_owned)
}

fn finish(family: &Family) -> Result<(), String> {
    let is_whole =
        family.name.is_empty() || family.kind.is_some() && family.has_help && family.has_samples;
    is_whole
        .then_some(())
        .ok_or_else(|| format!("{} is not whole", family.name))
}

fn sample(line: &str, family: &mut Family, samples: &mut Samples) -> Result<(), String> {
    let end = line
        .find(|c: char| c != '_' && !c.is_ascii_alphanumeric())
        .ok_or("a sample without a value")?;
    let (name, rest) = line.split_at(end);
    let suffix = match family.kind.as_deref() {
        Some("counter") => "_total",
        Some("info") => "_info",
        _ => "",
    };
    if name.strip_suffix(suffix) != Some(&family.name) {
        return Err("a sample of another family".to_owned());
    }
    let (labels, rest) = labels(rest)?;
    let value: f64 = rest
        .strip_prefix(' ')
        .and_then(|value| value.parse().ok())
        .ok_or("no value")?;
    let is_fine = match suffix {
        "_total" => value >= 0.0 && value.is_finite(),
        "_info" => value == 1.0,
        _ => !value.is_nan(),
    };
    if !is_fine {
        return Err("a value that its type cannot have".to_owned());
    }
    family.has_samples = true;
    match samples.insert((name.to_owned(), labels), value) {
        Some(_) => Err("a sample that was there before".to_owned()),
        None => Ok(()),
    }
}

type Labels = Vec<(String, String)>;

fn labels(text: &str) -> Result<(Labels, &str), String> {
    let Some(mut rest) = text.strip_prefix('{') else {
        return Ok((Vec::new(), text));
    };
    let mut labels = Labels::new();
    while !rest.starts_with('}') {
        if !labels.is_empty() {
            rest = rest.strip_prefix(',').ok_or("a comma")?;
        }
        let (name, value) = rest.split_once("=\"").ok_or("a label")?;
        if !is_name(name) || labels.iter().any(|(known, _)| known == name) {
            return Err(format!("a label of the name {name}"));
        }
        let (value, after) = quoted(value)?;
        labels.push((name.to_owned(), value));
        rest = after;
    }
    Ok((labels, &rest[1..]))
}

fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, c @ ('\\' | '"'))) => c,
                _ => return Err("an escape that is none".to_owned()),
            }),
            c => value.push(c),
        }
    }
    Err("a label that does not end".to_owned())
}

fn is_name(name: &str) -> bool {
    let first = name.chars().next();
    first.is_some_and(|c| c == '_' || c.is_ascii_alphabetic())
        && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}
