//! Where settings are in the file.

use std::collections::BTreeMap;

/// Line numbers from 1: of settings and single tables by name, of arrays of tables by name and
/// number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines {
    pub(super) named: BTreeMap<String, usize>,
    pub(super) numbered: BTreeMap<(&'static str, usize), usize>,
}

impl Lines {
    pub(crate) fn of(&self, name: &str) -> Option<usize> {
        self.named.get(name).copied()
    }

    pub(crate) fn of_number(&self, name: &'static str, number: usize) -> Option<usize> {
        self.numbered.get(&(name, number)).copied()
    }
}
