//! Circles of files and arrows up, per crate.
//!
//! A circle is a largest set of files in which each leads to each other by arrows ([`Arrows`]).
//! The files and folders of one folder are its rooms, put in that order in which the fewest
//! arrows between files point from a lower room to a higher one; each pair of rooms with such
//! arrows is an arrow up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::Finding;
use crate::arrows::Arrows;

/// Rooms of one circle for which the best order is computed: 2^20 sets.
const ROOMS_MAX: usize = 20;
/// Arrows up in one crate.
const UP_MAX: [(&str, usize); 2] = [("haul-gateway", 2), ("haul-soft", 4)];

/// An arrow up that is allowed. An entry that is no longer needed fails the check.
#[derive(Debug)]
pub struct Left {
    /// The folder of the crate below `crates/`.
    pub krate: &'static str,
    /// The lower room and the higher one; paths begin at `src/`.
    pub up: (&'static str, &'static str),
    /// Why it is better than what would replace it.
    pub reason: &'static str,
}

/// The shape of one crate.
#[derive(Debug)]
pub struct Structure {
    /// The folder of the crate below `crates/`.
    pub krate: String,
    /// Files of each circle, sorted, below `src/`.
    pub circles: Vec<Vec<String>>,
    /// Arrows from a lower room to a higher one.
    pub up: Vec<Up>,
    paths: Vec<String>,
    arrows: Arrows,
}

/// One arrow up.
#[derive(Debug)]
pub struct Up {
    /// The lower room, which uses the higher one.
    pub from: String,
    /// The higher room.
    pub to: String,
    /// Pairs of indices of the files between which it runs.
    files: Vec<(usize, usize)>,
}

impl Structure {
    /// Reads one crate below `crates/`.
    ///
    /// # Errors
    /// A file that cannot be read, or more rooms in one circle than can be ordered.
    pub fn read(root: &Path, krate: &str) -> Result<Self> {
        let src = root.join("crates").join(krate).join("src");
        let arrows = Arrows::read(&src).with_context(|| format!("crate {krate}"))?;
        Self::of(krate, arrows)
    }

    fn of(krate: &str, arrows: Arrows) -> Result<Self> {
        let paths: Vec<_> = arrows
            .files
            .iter()
            .map(|(path, _)| path.display().to_string())
            .collect();
        let pairs: Vec<_> = arrows.names.keys().copied().collect();
        let mut circles: Vec<Vec<String>> = circles(paths.len(), &pairs)
            .iter()
            .map(|circle| circle.iter().map(|&file| paths[file].clone()).collect())
            .collect();
        circles.iter_mut().for_each(|circle| circle.sort());
        circles.sort();
        let mut structure = Self {
            krate: krate.to_owned(),
            circles,
            up: Vec::new(),
            paths,
            arrows,
        };
        structure.up = structure.arrows_up()?;
        Ok(structure)
    }

    /// Every arrow between files belongs to one folder, the deepest that holds both.
    fn arrows_up(&self) -> Result<Vec<Up>> {
        let mut folders: BTreeMap<&[String], BTreeMap<_, Vec<_>>> = BTreeMap::new();
        for &(from, to) in self.arrows.names.keys() {
            let (lower, higher) = (&self.arrows.files[from].1, &self.arrows.files[to].1);
            let shared = lower.iter().zip(higher).take_while(|(a, b)| a == b).count();
            let rooms = (self.room(from, shared), self.room(to, shared));
            let folder = folders.entry(&lower[..shared]).or_default();
            folder.entry(rooms).or_default().push((from, to));
        }
        let mut up = Vec::new();
        for arrows in folders.into_values() {
            let rooms: BTreeSet<_> = arrows
                .keys()
                .flat_map(|(from, to)| [from, to])
                .cloned()
                .collect();
            let rooms: Vec<_> = rooms.into_iter().collect();
            let index = |room: &String| rooms.binary_search(room).unwrap_or_default();
            let weights: BTreeMap<_, _> = arrows
                .iter()
                .map(|((from, to), files)| ((index(from), index(to)), files.len()))
                .collect();
            let pairs: Vec<_> = weights.keys().copied().collect();
            for circle in circles(rooms.len(), &pairs) {
                let order = best_order(&circle, &weights).with_context(|| {
                    format!(
                        "{}: {} rooms in one circle, {ROOMS_MAX} at most",
                        self.krate,
                        circle.len()
                    )
                })?;
                for (floor, &lower) in order.iter().enumerate() {
                    for &higher in &order[floor + 1..] {
                        let key = (rooms[lower].clone(), rooms[higher].clone());
                        if let Some(files) = arrows.get(&key) {
                            up.push(Up {
                                from: key.0,
                                to: key.1,
                                files: files.clone(),
                            });
                        }
                    }
                }
            }
        }
        up.sort_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
        Ok(up)
    }

    /// The room of a file in the folder `depth` modules below the root.
    fn room(&self, file: usize, depth: usize) -> String {
        let module = &self.arrows.files[file].1;
        let Some(room) = module.get(..=depth) else {
            return self.paths[file].clone();
        };
        let inside = self
            .arrows
            .files
            .iter()
            .filter(|(_, other)| other.starts_with(room));
        if inside.count() == 1 {
            self.paths[file].clone()
        } else {
            format!("{}/", room.join("/"))
        }
    }

    /// Tells what ties each circle and each arrow up, with the names that one file takes.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!(
            "{}: {} circles, {} arrows up\n",
            self.krate,
            self.circles.len(),
            self.up.len()
        );
        for circle in &self.circles {
            _ = writeln!(
                text,
                "  circle of {} files: {}",
                circle.len(),
                circle.join(" ")
            );
            let inside = |file: usize| circle.contains(&self.paths[file]);
            for &(from, to) in self
                .arrows
                .names
                .keys()
                .filter(|(from, to)| inside(*from) && inside(*to))
            {
                self.describe_arrow(&mut text, from, to);
            }
        }
        for up in &self.up {
            _ = writeln!(text, "  arrow up: {} -> {}", up.from, up.to);
            for &(from, to) in &up.files {
                self.describe_arrow(&mut text, from, to);
            }
        }
        text
    }

    fn describe_arrow(&self, text: &mut String, from: usize, to: usize) {
        let names: Vec<_> = self.arrows.names[&(from, to)]
            .iter()
            .map(String::as_str)
            .collect();
        _ = writeln!(
            text,
            "    {} -> {}: {}",
            self.paths[from],
            self.paths[to],
            names.join(", ")
        );
    }
}

/// Reads every crate below `crates/`, by name.
///
/// # Errors
/// As [`Structure::read`].
pub fn read_all(root: &Path) -> Result<Vec<Structure>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).context("list crates/")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    names
        .iter()
        .map(|name| Structure::read(root, name))
        .collect()
}

/// Circles, arrows up that are not in the list, entries of the list that are no longer needed, and
/// limits that are exceeded.
#[must_use]
pub fn check(crates: &[Structure], left: &[Left]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut needed = vec![false; left.len()];
    for one in crates {
        let krate = &one.krate;
        for circle in &one.circles {
            findings.push(format!("{krate}: circle {}", circle.join(" ")));
        }
        for up in &one.up {
            let listed = left
                .iter()
                .position(|left| left.krate == krate && left.up == (&*up.from, &*up.to));
            match listed {
                Some(listed) => needed[listed] = true,
                None => findings.push(format!("{krate}: arrow up {} -> {}", up.from, up.to)),
            }
        }
        for (_, limit) in UP_MAX
            .iter()
            .filter(|(name, limit)| name == krate && one.up.len() > *limit)
        {
            findings.push(format!(
                "{krate}: {} arrows up, {limit} at most",
                one.up.len()
            ));
        }
    }
    for (left, needed) in left.iter().zip(needed) {
        if !needed {
            findings.push(format!(
                "{}: arrow up {} -> {} is gone: take it off the list",
                left.krate, left.up.0, left.up.1
            ));
        }
    }
    if !findings.is_empty() {
        findings.push("cargo run -p xtask -- structure CRATE tells what ties them".to_owned());
    }
    findings
}

/// The sets of two or more of `0..count` in which each leads to each other.
fn circles(count: usize, arrows: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let mut leads = vec![vec![false; count]; count];
    for &(from, to) in arrows {
        leads[from][to] = true;
    }
    for middle in 0..count {
        let onward = leads[middle].clone();
        for from in leads.iter_mut().filter(|from| from[middle]) {
            from.iter_mut()
                .zip(&onward)
                .for_each(|(to, &through)| *to |= through);
        }
    }
    let mut circles: Vec<Vec<usize>> = Vec::new();
    for (one, to) in leads.iter().enumerate() {
        let mutual = |&two: &usize| to[two] && leads[two][one];
        let circle: Vec<_> = (0..count).filter(mutual).collect();
        if circle.len() > 1 && circle[0] == one {
            circles.push(circle);
        }
    }
    circles
}

/// The rooms from the lowest up, so that the weights from lower to higher rooms add up to as
/// little as possible; among equal orders always the same. `None` for more than [`ROOMS_MAX`].
fn best_order(rooms: &[usize], weights: &BTreeMap<(usize, usize), usize>) -> Option<Vec<usize>> {
    if rooms.len() > ROOMS_MAX {
        return None;
    }
    // For each set of rooms that may stand below: the weight of its best order, and its top.
    let mut best = vec![(usize::MAX, 0); 1 << rooms.len()];
    best[0] = (0, 0);
    for below in 0..best.len() {
        let (best_below, _) = best[below];
        for (top, &room) in rooms
            .iter()
            .enumerate()
            .filter(|(top, _)| below >> top & 1 == 0)
        {
            let up = rooms
                .iter()
                .enumerate()
                .filter(|(lower, _)| below >> lower & 1 == 1);
            let up: usize = up
                .filter_map(|(_, &lower)| weights.get(&(lower, room)))
                .sum();
            let with = &mut best[below | 1 << top];
            *with = (*with).min((best_below + up, top));
        }
    }
    let mut order = Vec::new();
    let mut set = best.len() - 1;
    while set != 0 {
        let top = best[set].1;
        order.push(rooms[top]);
        set &= !(1 << top);
    }
    order.reverse();
    Some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate with an arrow for each pair of module paths.
    fn structure(pairs: &[(&str, &str)]) -> Structure {
        let mut arrows = Arrows::default();
        let mut file = |path: &str| {
            let module: Vec<_> = path.split('/').map(str::to_owned).collect();
            let found = arrows.files.iter().position(|(_, other)| *other == module);
            found.unwrap_or_else(|| {
                arrows.files.push((format!("{path}.rs").into(), module));
                arrows.files.len() - 1
            })
        };
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(from, to)| (file(from), file(to)))
            .collect();
        let names = pairs
            .into_iter()
            .map(|pair| (pair, BTreeSet::from(["x".to_owned()])));
        arrows.names = names.collect();
        Structure::of("k", arrows).unwrap()
    }

    fn up(structure: &Structure) -> Vec<(&str, &str)> {
        let up = structure.up.iter();
        up.map(|up| (up.from.as_str(), up.to.as_str())).collect()
    }

    #[test]
    fn the_fewest_arrows_are_up() {
        let found = structure(&[("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")]);
        assert_eq!(found.circles, [["a.rs", "b.rs", "c.rs"]]);
        assert_eq!(up(&found), [("c.rs", "a.rs")]);
    }

    #[test]
    fn folders_can_circle_without_a_circle_of_files() {
        let found = structure(&[("a/x", "b/x"), ("a/z", "b/x"), ("b/y", "a/y")]);
        assert_eq!(found.circles, <[Vec<String>; 0]>::default());
        assert_eq!(up(&found), [("b/", "a/")]);
        assert_eq!(check(&[found], &[]).len(), 2);
    }

    #[test]
    fn a_listed_arrow_is_allowed_and_must_be_there_and_a_circle_is_refused() {
        let left = [Left {
            krate: "k",
            up: ("b/", "a/"),
            reason: "they are one",
        }];
        let pairs = [("a/x", "b/x"), ("a/z", "b/x"), ("b/y", "a/y")];
        assert_eq!(check(&[structure(&pairs)], &left), <[&str; 0]>::default());
        let gone = check(&[structure(&pairs[..1])], &left);
        assert!(gone[0].contains("take it off the list"), "{gone:?}");
        let circle = check(&[structure(&[("a", "b"), ("b", "a")])], &[]);
        assert_eq!(circle[0], "k: circle a.rs b.rs");
    }

    #[test]
    fn no_crate_has_more_arrows_up_than_its_limit() {
        for (krate, limit) in UP_MAX {
            let up = |count| {
                let pairs: Vec<_> = (0..count)
                    .flat_map(|i| {
                        [
                            (format!("a{i}"), format!("b{i}")),
                            (format!("b{i}"), format!("a{i}")),
                        ]
                    })
                    .collect();
                let pairs: Vec<_> = pairs.iter().map(|(from, to)| (&**from, &**to)).collect();
                let mut one = structure(&pairs);
                krate.clone_into(&mut one.krate);
                let found = check(&[one], &[]).join("\n");
                found.contains(&format!("{krate}: {count} arrows up"))
            };
            assert!(!up(limit), "{krate}");
            assert!(up(limit + 1), "{krate}");
        }
    }
}
