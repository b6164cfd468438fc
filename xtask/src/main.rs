//! Shows what the rules of this repository see.
//!
//! `cargo run -p xtask -- structure [CRATE…]` prints the circles of files and the arrows up of each
//! crate with the names that tie them.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Result, bail};
use xtask::structure::{self, Structure};

fn main() -> Result<()> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let crates = match arguments.split_first() {
        Some((verb, [])) if verb == "structure" => structure::read_all(root)?,
        Some((verb, names)) if verb == "structure" => {
            let crates = names.iter().map(|name| Structure::read(root, name));
            crates.collect::<Result<_>>()?
        }
        _ => bail!("usage: xtask structure [CRATE…]"),
    };
    for one in crates {
        print!("{}", one.describe());
    }
    Ok(())
}
