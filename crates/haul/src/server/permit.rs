//! What a client may do.

use haul_control::trust::Rights;

use crate::fault::{Code, Fault};

/// Refuses what an identity may not do.
pub(super) fn permit(is_permitted: bool, rights: &Rights, what: &str) -> Result<(), Fault> {
    if is_permitted {
        return Ok(());
    }
    Err(
        Fault::new(Code::Refused, format!("{} may not {what}", rights.name))
            .hint("have the server's operator change the rights in its authorised keys"),
    )
}
