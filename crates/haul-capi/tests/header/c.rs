//! What include/haul.h declares, read as text: it is our own, and regular.

use std::collections::BTreeSet;

/// Without comments and lines of the preprocessor; white space is one blank.
fn code(header: &str) -> String {
    let mut code = String::new();
    for (number, part) in header.split("/*").enumerate() {
        let behind = match number {
            0 => part,
            _ => part.split_once("*/").expect("a comment ends").1,
        };
        code.push_str(behind);
        code.push(' ');
    }
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

/// Prototypes, as `int haul_cq_arm(haul_cq *cq, int solicited_only)`.
pub(crate) fn functions(header: &str) -> BTreeSet<String> {
    let code = code(header);
    let statements = code.split(';').map(str::trim);
    let prototypes = statements.filter(|text| text.ends_with(')') && text.contains("haul_"));
    // The first one stands behind `extern "C" {`.
    prototypes
        .map(|text| {
            text.rsplit(['{', '}'])
                .next()
                .unwrap_or(text)
                .trim()
                .to_owned()
        })
        .collect()
}

/// Structures with their fields, as `haul_sge {uint64_t addr; uint32_t len; uint32_t lkey;}`.
pub(crate) fn structures(header: &str) -> BTreeSet<String> {
    let code = code(header);
    let definitions = code.split("typedef struct ").skip(1).filter_map(|text| {
        let (name, rest) = text.split_once(" {")?;
        let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let (fields, alias) = rest.split_once('}')?;
        assert!(
            !plain || alias.trim_start().starts_with(&format!("{name};")),
            "{name}"
        );
        plain.then(|| format!("{name} {{{}}}", fields.trim()))
    });
    definitions.collect()
}

/// Opaque types.
pub(crate) fn objects(header: &str) -> BTreeSet<String> {
    let code = code(header);
    let declarations = code.split("typedef struct ").skip(1).filter_map(|text| {
        let (declaration, _) = text.split_once(';')?;
        let (name, alias) = declaration.split_once(' ')?;
        (name == alias).then(|| name.to_owned())
    });
    declarations.collect()
}

/// Names of enumerators and of macros that are numbers.
pub(crate) fn numbers(header: &str) -> BTreeSet<String> {
    let macros = header.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
        (!name.ends_with("_INIT") && !value.starts_with('{')).then(|| name.to_owned())
    });
    let code = code(header);
    let enumerators = code
        .split("enum haul_")
        .skip(1)
        .filter_map(|text| text.split_once('{')?.1.split_once('}'))
        .flat_map(|(body, _)| body.split(','))
        .filter_map(|entry| Some(entry.split_once('=')?.0.trim().to_owned()));
    macros.chain(enumerators.collect::<Vec<_>>()).collect()
}
