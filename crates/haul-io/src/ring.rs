//! A byte ring whose every range is contiguous: one memory object mapped twice in a row.
