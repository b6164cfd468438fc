//! Reads which file of a crate uses which other file, from the paths in its source.
//!
//! An arrow leads from the file that names an item to the file that defines it. Re-exports are
//! followed, so a parent that only declares its children (`mod x;`) or re-exports them (`pub use`)
//! has no arrow, and code behind `#[cfg(test)]` has none either. Method calls are not seen: an
//! arrow needs a path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, Meta, UseTree, Visibility};

/// Re-exports of re-exports that are followed before a name counts as foreign.
const DEPTH_MAX: usize = 12;

/// The non-test files of one crate and the arrows between them.
#[derive(Debug, Default)]
pub struct Arrows {
    /// Each file, below the source folder of the crate, with its module path (`[]` is the root).
    pub files: Vec<(PathBuf, Vec<String>)>,
    /// The names that one file takes from another, by the two indices into `files`.
    pub names: BTreeMap<(usize, usize), BTreeSet<String>>,
}

impl Arrows {
    /// Reads the crate whose source folder is `src`, from `lib.rs` or else `main.rs`.
    ///
    /// # Errors
    /// A file that is missing or that is not Rust.
    pub fn read(src: &Path) -> Result<Self> {
        let root = ["lib.rs", "main.rs"].map(|name| src.join(name));
        let root = root.iter().find(|root| root.exists());
        let mut tree = Tree::default();
        tree.read_file(root.context("no lib.rs or main.rs")?, src, None)?;
        let mut names: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for (index, module) in tree.modules.iter().enumerate() {
            for path in &module.uses {
                for found in tree.resolve(index, path, 0) {
                    if let Found::Item(file) = found
                        && file != module.file
                    {
                        let name = path.last().cloned().unwrap_or_default();
                        names.entry((module.file, file)).or_default().insert(name);
                    }
                }
            }
        }
        let files = tree.files.iter().map(|(path, module)| {
            let path = path.strip_prefix(src).unwrap_or(path).to_path_buf();
            (path, tree.path_of(*module))
        });
        Ok(Self {
            files: files.collect(),
            names,
        })
    }
}

/// What a name in a module stands for.
enum Name {
    Module(usize),
    Item,
    Import(Vec<String>),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Module(usize),
    Item(usize),
}

struct Module {
    name: String,
    file: usize,
    parent: Option<usize>,
    names: BTreeMap<String, Vec<Name>>,
    globs: Vec<Vec<String>>,
    /// Paths that the code of this module names.
    uses: BTreeSet<Vec<String>>,
}

#[derive(Default)]
struct Tree {
    /// Path and module of each file.
    files: Vec<(PathBuf, usize)>,
    modules: Vec<Module>,
}

impl Tree {
    /// `folder` is where the children of the file's module lie.
    fn read_file(
        &mut self,
        path: &Path,
        folder: &Path,
        parent: Option<(usize, &Ident)>,
    ) -> Result<usize> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let file =
            syn::parse_file(&text).with_context(|| format!("{} is not Rust", path.display()))?;
        let module = self.modules.len();
        self.files.push((path.to_path_buf(), module));
        self.read_module(self.files.len() - 1, &file.items, folder, parent)
    }

    fn read_module(
        &mut self,
        file: usize,
        items: &[Item],
        folder: &Path,
        parent: Option<(usize, &Ident)>,
    ) -> Result<usize> {
        let index = self.modules.len();
        self.modules.push(Module {
            name: parent.map(|(_, name)| name.to_string()).unwrap_or_default(),
            file,
            parent: parent.map(|(parent, _)| parent),
            names: BTreeMap::new(),
            globs: Vec::new(),
            uses: BTreeSet::new(),
        });
        for item in items {
            match item {
                Item::Mod(child) if !is_test(&child.attrs) => {
                    let inner = folder.join(child.ident.to_string());
                    let parent = Some((index, &child.ident));
                    let made = if let Some((_, items)) = &child.content {
                        self.read_module(file, items, &inner, parent)?
                    } else {
                        let flat = inner.with_extension("rs");
                        let path = if flat.exists() {
                            flat
                        } else {
                            inner.join("mod.rs")
                        };
                        self.read_file(&path, &inner, parent)?
                    };
                    let names = &mut self.modules[index].names;
                    let name = child.ident.to_string();
                    names.entry(name).or_default().push(Name::Module(made));
                }
                Item::Mod(_) => {}
                _ => {
                    let module = &mut self.modules[index];
                    if let Some(name) = defined(item) {
                        let name = name.to_string();
                        module.names.entry(name).or_default().push(Name::Item);
                    }
                    module.visit_item(item);
                }
            }
        }
        Ok(index)
    }

    fn path_of(&self, module: usize) -> Vec<String> {
        let module = &self.modules[module];
        let Some(parent) = module.parent else {
            return Vec::new();
        };
        let mut path = self.path_of(parent);
        path.push(module.name.clone());
        path
    }

    /// Everything that `path` can stand for in `module`; nothing if it leads out of the crate.
    fn resolve(&self, module: usize, path: &[String], depth: usize) -> BTreeSet<Found> {
        let Some((first, rest)) = path.split_first() else {
            return BTreeSet::new();
        };
        let mut found = match first.as_str() {
            "crate" => BTreeSet::from([Found::Module(0)]),
            "self" => BTreeSet::from([Found::Module(module)]),
            "super" => self.modules[module]
                .parent
                .map(Found::Module)
                .into_iter()
                .collect(),
            name => self.look_up(module, name, !rest.is_empty(), depth),
        };
        for (index, name) in rest.iter().enumerate() {
            let more = index + 1 < rest.len();
            let step = |at: Found| match at {
                Found::Item(_) => BTreeSet::from([at]),
                Found::Module(at) if name == "super" => self.modules[at]
                    .parent
                    .map(Found::Module)
                    .into_iter()
                    .collect(),
                Found::Module(at) => {
                    let found = self.look_up(at, name, more, depth);
                    // Whatever a macro defines is not seen, but it is there.
                    if found.is_empty() {
                        BTreeSet::from([Found::Item(self.modules[at].file)])
                    } else {
                        found
                    }
                }
            };
            found = found.into_iter().flat_map(step).collect();
        }
        found
    }

    fn look_up(&self, module: usize, name: &str, in_path: bool, depth: usize) -> BTreeSet<Found> {
        let mut found = BTreeSet::new();
        if depth == DEPTH_MAX {
            return found;
        }
        let here = &self.modules[module];
        for meaning in here.names.get(name).into_iter().flatten() {
            match meaning {
                Name::Module(child) => {
                    found.insert(Found::Module(*child));
                    if in_path {
                        return found;
                    }
                }
                Name::Item => {
                    found.insert(Found::Item(here.file));
                }
                Name::Import(path) => found.append(&mut self.resolve(module, path, depth + 1)),
            }
        }
        if found.is_empty() {
            for glob in &here.globs {
                for target in self.resolve(module, glob, depth + 1) {
                    if let Found::Module(target) = target
                        && target != module
                    {
                        found.append(&mut self.look_up(target, name, in_path, depth + 1));
                    }
                }
            }
        }
        found
    }
}

impl Module {
    fn import(&mut self, prefix: &[String], tree: &UseTree, exported: bool) {
        let with = |name: &Ident| [prefix, &[name.to_string()]].concat();
        let (name, path) = match tree {
            UseTree::Path(part) => return self.import(&with(&part.ident), &part.tree, exported),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(prefix, tree, exported);
                }
                return;
            }
            UseTree::Glob(_) => {
                self.globs.push(prefix.to_vec());
                return;
            }
            UseTree::Name(part) if part.ident == "self" => {
                (prefix.last().cloned().unwrap_or_default(), prefix.to_vec())
            }
            UseTree::Name(part) => (part.ident.to_string(), with(&part.ident)),
            UseTree::Rename(part) => (part.rename.to_string(), with(&part.ident)),
        };
        if !exported {
            self.uses.insert(path.clone());
        }
        self.names.entry(name).or_default().push(Name::Import(path));
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            let exported = !matches!(item.vis, Visibility::Inherited);
            self.import(&[], &item.tree, exported);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|part| part.ident.to_string());
            self.uses.insert(names.collect());
        }
        visit::visit_path(self, path);
    }

    /// Arguments that are expressions, as those of `format!` and `assert!` are.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        let arguments = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        if let Ok(arguments) = arguments.parse2(call.tokens.clone()) {
            for argument in &arguments {
                Visit::<'_>::visit_expr(self, argument);
            }
        }
    }
}

fn defined(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether only tests see the item: `#[cfg(test)]`, also as one condition of `all`.
fn is_test(attributes: &[Attribute]) -> bool {
    let mut cfgs = attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.any(|attribute| match &attribute.meta {
        Meta::List(list) => {
            let condition = list.tokens.to_string();
            condition == "test"
                || condition.starts_with("all (test")
                || condition.starts_with("all(test")
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arrows of a crate with these files, as `from -> to: names`.
    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let src = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = src.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let arrows = Arrows::read(src.path()).unwrap();
        let path = |file: usize| arrows.files[file].0.display().to_string();
        let names = arrows.names.iter().map(|((from, to), names)| {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            format!("{} -> {}: {}", path(*from), path(*to), names.join(" "))
        });
        names.collect()
    }

    #[test]
    fn a_parent_that_only_declares_and_re_exports_has_no_arrow() {
        let found = arrows(&[
            ("lib.rs", "mod a; pub use a::A;"),
            ("a.rs", "mod b; pub struct A; pub(crate) use b::B;"),
            ("a/b.rs", "use super::A; pub struct B(A);"),
        ]);
        assert_eq!(found, ["a/b.rs -> a.rs: A"]);
    }

    #[test]
    fn re_exports_are_followed_to_the_file_that_defines() {
        let found = arrows(&[
            ("lib.rs", "mod a; mod c;"),
            ("a/mod.rs", "mod b; pub use b::*;"),
            ("a/b.rs", "pub struct B;"),
            ("c.rs", "use crate::a; fn f(_: a::B) {}"),
        ]);
        assert_eq!(found, ["c.rs -> a/b.rs: B"]);
    }

    #[test]
    fn paths_in_code_and_in_the_arguments_of_macros_are_arrows() {
        let found = arrows(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub fn one() -> u8 { 1 } pub fn two() -> u8 { 2 }"),
            (
                "b.rs",
                "fn f() { crate::a::one(); println!(\"{}\", super::a::two()); }",
            ),
        ]);
        assert_eq!(found, ["b.rs -> a.rs: one two"]);
    }

    #[test]
    fn tests_have_no_arrows() {
        let found = arrows(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            (
                "b.rs",
                "pub struct B; #[cfg(all(test, unix))] fn f(_: crate::a::A) {}",
            ),
        ]);
        assert_eq!(found, <[&str; 0]>::default());
    }
}
