//! What the user must know about a lab.

use crate::lab::Lab;

/// Prints the lab's notes to stderr.
pub(super) fn show_notes(lab: &Lab) {
    for note in lab.notes() {
        eprintln!("note: {note}");
    }
}
