//! Source files that no target of cargo reaches: nothing compiles them, so nobody notices when
//! they break.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Expr, ExprLit, ItemMod, Lit, Meta};

use crate::Finding;
use crate::text::normal;
use crate::tree::TextFile;

/// Source files that neither are in `roots`, the first files of all targets, nor are declared by a
/// `mod` of a file that is reached. A file with a wrong syntax declares nothing.
#[must_use]
pub fn check_reached(files: &[TextFile], roots: &[PathBuf]) -> Vec<Finding> {
    let sources: BTreeMap<&Path, &str> = files
        .iter()
        .filter(|file| file.has_extension("rs"))
        .map(|file| (Path::new(&file.path), file.text.as_str()))
        .collect();
    let mut reached = BTreeSet::new();
    // Each with the folder of its children.
    let mut next: Vec<_> = roots
        .iter()
        .map(|root| (root.clone(), above(root)))
        .collect();
    while let Some((path, folder)) = next.pop() {
        let Some(text) = sources.get(path.as_path()) else {
            continue;
        };
        if !reached.insert(path.clone()) {
            continue;
        }
        let mut declared = Declared {
            beside: above(&path),
            folder,
            files: Vec::new(),
        };
        if let Ok(file) = syn::parse_file(text) {
            declared.visit_file(&file);
        }
        next.extend(declared.files);
    }
    sources
        .keys()
        .filter(|path| !reached.contains(**path))
        .map(|path| {
            format!(
                "{}: no target of cargo and no `mod` names it",
                path.display()
            )
        })
        .collect()
}

/// The files that one file declares.
struct Declared {
    /// The folder of the file, from which `#[path]` counts.
    beside: PathBuf,
    /// The folder of its module's children.
    folder: PathBuf,
    /// Possible files of the children, each with the folder of its own children.
    files: Vec<(PathBuf, PathBuf)>,
}

impl<'ast> Visit<'ast> for Declared {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let inner = self.folder.join(item.ident.to_string());
        if item.content.is_some() {
            let outer = std::mem::replace(&mut self.folder, inner);
            visit::visit_item_mod(self, item);
            self.folder = outer;
        } else if let Some(path) = item.attrs.iter().find_map(|one| path_of(&one.meta)) {
            let path = normal(&self.beside.join(path)).unwrap_or_default();
            let folder = above(&path);
            self.files.push((path, folder));
        } else {
            self.files.push((inner.with_extension("rs"), inner.clone()));
            self.files.push((inner.join("mod.rs"), inner));
        }
    }
}

fn path_of(attribute: &Meta) -> Option<String> {
    let Meta::NameValue(pair) = attribute else {
        return None;
    };
    match &pair.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(path),
            ..
        }) if pair.path.is_ident("path") => Some(path.value()),
        _ => None,
    }
}

fn above(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_nothing_declares_is_found() {
        let files = [
            ("a/src/lib.rs", "mod one; mod two { mod deep; }"),
            ("a/src/one.rs", "#[cfg(test)] mod tests;"),
            ("a/src/one/tests.rs", "fn f() { mod inner; }"),
            ("a/src/one/tests/inner.rs", ""),
            (
                "a/src/two/deep/mod.rs",
                "#[path = \"../../../shared/x.rs\"] mod x;",
            ),
            ("a/shared/x.rs", "mod y;"),
            ("a/shared/y.rs", ""),
            ("a/src/tests.rs", "mod below;"),
            ("a/src/tests/below.rs", ""),
            ("a/tests/all.rs", ""),
        ];
        let files = files.map(|(path, text)| TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        });
        let roots = ["a/src/lib.rs", "a/tests/all.rs"].map(PathBuf::from);
        let found = check_reached(&files, &roots).join("\n");
        assert_eq!(found.lines().count(), 2, "{found}");
        assert!(found.contains("a/src/tests.rs") && found.contains("a/src/tests/below.rs"));
    }
}
