//! The two libraries, and how their calls fail.

use std::error::Error as _;
use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use haul_verbs::{Error, Result};

use crate::ffi::cm::Cm;
use crate::ffi::verbs::Verbs;

/// libibverbs and librdmacm, loaded.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) verbs: Verbs,
    pub(crate) cm: Cm,
}

impl Library {
    /// # Errors
    /// The loader's words: a file that is missing, or one too old to have a function.
    pub(crate) fn load() -> Result<Self, String> {
        let verbs = Verbs::load().map_err(|error| explain(&error))?;
        let cm = Cm::load().map_err(|error| explain(&error))?;
        Ok(Self { verbs, cm })
    }
}

/// The loader's message is the error's source.
fn explain(error: &libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// An object of one of the libraries. Whoever holds it answers for its life.
#[derive(Debug)]
pub(crate) struct Raw<T>(NonNull<T>);

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

// SAFETY: the objects of libibverbs and librdmacm may be used from any thread (ibv_open_device(3),
// rdma_cm(7)).
unsafe impl<T> Send for Raw<T> {}
// SAFETY: their calls lock what they share.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// What a call that makes a `what` has returned.
    ///
    /// # Errors
    /// `errno`, where it has returned none.
    pub(crate) fn made(what: &'static str, object: *mut T) -> Result<Self> {
        let Some(object) = NonNull::new(object) else {
            let source = io::Error::last_os_error();
            return Err(match source.kind() {
                io::ErrorKind::OutOfMemory => Error::Exhausted(what),
                _ => Error::Os { what, source },
            });
        };
        Ok(Self(object))
    }

    pub(crate) fn ptr(self) -> *mut T {
        self.0.as_ptr()
    }
}

/// What a call has returned: zero, an error number, or a negative number and the error in `errno`.
pub(crate) fn check(what: &'static str, returned: c_int) -> Result<()> {
    let source = match returned {
        0 => return Ok(()),
        number if number > 0 => io::Error::from_raw_os_error(number),
        _ => io::Error::last_os_error(),
    };
    Err(Error::Os { what, source })
}
