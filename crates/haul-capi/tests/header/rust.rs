//! What the Rust code defines, written as C would.

use std::collections::BTreeSet;

use syn::punctuated::Punctuated;
use syn::visit::Visit;
use syn::{
    Expr, Field, File, FnArg, GenericArgument, Item, ItemFn, ItemStruct, Lit, Pat, PathArguments,
    PointerMutability, ReturnType, Token, Type, TypePath,
};

fn items(files: &[File]) -> impl Iterator<Item = &Item> {
    files.iter().flat_map(|file| &file.items)
}

fn exported(files: &[File]) -> impl Iterator<Item = &ItemFn> {
    items(files).filter_map(|item| match item {
        Item::Fn(function) if function.sig.abi.is_some() => Some(function),
        _ => None,
    })
}

fn structs(files: &[File]) -> impl Iterator<Item = &ItemStruct> {
    items(files).filter_map(|item| match item {
        Item::Struct(item) if item.ident.to_string().starts_with("haul_") => Some(item),
        _ => None,
    })
}

fn is_repr_c(item: &ItemStruct) -> bool {
    item.attrs
        .iter()
        .any(|attribute| attribute.path().is_ident("repr"))
}

/// Names of types that C sees by their fields.
fn plain(files: &[File]) -> BTreeSet<String> {
    let plain = structs(files).filter(|item| is_repr_c(item));
    plain.map(|item| item.ident.to_string()).collect()
}

/// See [`super::c::functions`].
pub(crate) fn functions(files: &[File]) -> BTreeSet<String> {
    let plain = plain(files);
    let prototype = |function: &ItemFn| {
        let arguments: Vec<_> = function
            .sig
            .inputs
            .iter()
            .map(|argument| parameter(argument, &plain))
            .collect();
        let arguments = if arguments.is_empty() {
            "void".to_owned()
        } else {
            arguments.join(", ")
        };
        let result = match &function.sig.output {
            ReturnType::Default => "void ".to_owned(),
            ReturnType::Type(_, result) => declare(result, "", &plain),
        };
        format!("{result}{}({arguments})", function.sig.ident)
    };
    exported(files).map(prototype).collect()
}

fn parameter(argument: &FnArg, plain: &BTreeSet<String>) -> String {
    let FnArg::Typed(argument) = argument else {
        panic!("methods are not exported");
    };
    let Pat::Ident(name) = &*argument.pat else {
        panic!("a parameter has a name");
    };
    declare(&argument.ty, &name.ident.to_string(), plain)
}

/// A declaration of `name`: `uint32_t len`, `haul_qp **out`.
fn declare(kind: &Type, name: &str, plain: &BTreeSet<String>) -> String {
    let text = c_type(kind, plain);
    let blank = if text.ends_with('*') { "" } else { " " };
    format!("{text}{blank}{name}")
}

fn c_type(kind: &Type, plain: &BTreeSet<String>) -> String {
    match kind {
        Type::Ptr(pointer) => {
            let target = c_type(&pointer.elem, plain);
            let constant = if matches!(pointer.mutability, PointerMutability::Mut(_)) {
                ""
            } else {
                "const "
            };
            point(&format!("{constant}{target}"))
        }
        Type::Reference(reference) => {
            let target = c_type(&reference.elem, plain);
            // What a shared reference to an object allows is the object's affair.
            let constant = reference.mutability.is_none() && plain.contains(&target);
            point(&format!("{}{target}", if constant { "const " } else { "" }))
        }
        Type::Path(path) => named(path, plain),
        _ => panic!("a type that has no meaning in C"),
    }
}

fn point(target: &str) -> String {
    let blank = if target.ends_with('*') { "" } else { " " };
    format!("{target}{blank}*")
}

fn named(path: &TypePath, plain: &BTreeSet<String>) -> String {
    let segment = path.path.segments.last().expect("a path is not empty");
    let name = segment.ident.to_string();
    let inner = || match &segment.arguments {
        PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
            Some(GenericArgument::Type(inner)) => c_type(inner, plain),
            _ => panic!("{name} of no type"),
        },
        _ => panic!("{name} of nothing"),
    };
    match name.as_str() {
        "Option" | "MaybeUninit" => inner(),
        "Box" => point(&inner()),
        "c_int" => "int".to_owned(),
        "c_char" => "char".to_owned(),
        "c_void" => "void".to_owned(),
        "usize" => "size_t".to_owned(),
        "u8" | "u16" | "u32" | "u64" => format!("uint{}_t", &name[1..]),
        "i64" => "int64_t".to_owned(),
        "sockaddr" | "sockaddr_storage" => format!("struct {name}"),
        _ => name,
    }
}

/// See [`super::c::structures`].
pub(crate) fn structures(files: &[File]) -> BTreeSet<String> {
    let plain = plain(files);
    let definition = |item: &ItemStruct| {
        let fields: Vec<_> = item
            .fields
            .iter()
            .map(|field| member(field, &plain))
            .collect();
        format!("{} {{{}}}", item.ident, fields.join(" "))
    };
    structs(files)
        .filter(|item| is_repr_c(item))
        .map(definition)
        .collect()
}

fn member(field: &Field, plain: &BTreeSet<String>) -> String {
    let name = field.ident.as_ref().expect("fields have names").to_string();
    let name = name.trim_start_matches("r#");
    if let Type::Array(array) = &field.ty {
        let Expr::Lit(len) = &array.len else {
            panic!("lengths are numbers");
        };
        let Lit::Int(len) = &len.lit else {
            panic!("lengths are numbers");
        };
        return format!("{}[{len}];", declare(&array.elem, name, plain));
    }
    format!("{};", declare(&field.ty, name, plain))
}

/// See [`super::c::objects`].
pub(crate) fn objects(files: &[File]) -> BTreeSet<String> {
    let opaque = structs(files).filter(|item| !is_repr_c(item));
    opaque.map(|item| item.ident.to_string()).collect()
}

/// Constants and their values as C can read them.
pub(crate) fn numbers(files: &[File]) -> BTreeSet<(String, String)> {
    let constants = items(files).filter_map(|item| match item {
        Item::Const(constant) if constant.ident.to_string().starts_with("HAUL_") => Some(constant),
        _ => None,
    });
    constants
        .map(|constant| (constant.ident.to_string(), value(&constant.expr)))
        .collect()
}

fn value(expression: &Expr) -> String {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => format!("{}u", number.to_string().replace('_', "")),
            _ => panic!("numbers are numbers"),
        },
        Expr::Unary(negative) => format!("-{}", value(&negative.expr).trim_end_matches('u')),
        Expr::Binary(shift) => format!("{} << {}", value(&shift.left), value(&shift.right)),
        _ => panic!("numbers are literals, negative, or shifted"),
    }
}

/// Functions that give the border another name than their own.
pub(crate) fn misnamed(files: &[File]) -> Vec<String> {
    let wrong = exported(files).filter_map(|function| {
        let mut names = Names(Vec::new());
        names.visit_block(&function.block);
        let own = function.sig.ident.to_string();
        let other = names.0.into_iter().find(|name| *name != own)?;
        Some(format!("{own} says that it is {other}"))
    });
    wrong.collect()
}

/// The names that functions are called by in calls of the border.
struct Names(Vec<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        self.collect(&call.args);
        syn::visit::visit_expr_call(self, call);
    }
}

impl Names {
    fn collect(&mut self, arguments: &Punctuated<Expr, Token![,]>) {
        for argument in arguments {
            if let Expr::Lit(literal) = argument
                && let Lit::Str(text) = &literal.lit
                && text.value().starts_with("haul_")
            {
                self.0.push(text.value());
            }
        }
    }
}
