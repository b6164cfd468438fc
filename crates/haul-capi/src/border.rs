//! The border between C and Rust: panics end here, failures become numbers and are kept for who
//! asks, pointers become references.

use std::any::Any;
use std::ffi::{c_char, c_int};
use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::number::HAUL_OK;
use crate::status::{Error, Result};

/// The last failure of a context. It becomes text when the caller asks for it.
#[derive(Debug, Default)]
pub(crate) struct Last(Mutex<Option<Note>>);

#[derive(Debug)]
struct Note {
    /// The function.
    what: &'static str,
    error: Error,
}

/// Of calls that belong to no context.
pub(crate) static NOWHERE: Last = Last(Mutex::new(None));

impl Last {
    fn note(&self, what: &'static str, error: Error) -> c_int {
        let status = error.status();
        *self.lock() = Some(Note { what, error });
        status
    }

    /// The `errno` of the last failure; 0 where there was none.
    pub(crate) fn errno(&self) -> c_int {
        self.lock().as_ref().map_or(0, |note| note.error.errno())
    }

    /// The last failure as text; empty where there was none.
    pub(crate) fn text(&self) -> String {
        self.lock()
            .as_ref()
            .map(Note::to_string)
            .unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Note>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

/// What applications hold.
pub(crate) trait Handle: Sync {
    /// Where failures of its context go.
    fn last(&self) -> &Arc<Last>;
}

macro_rules! handles {
    ($($name:ty),*) => {
        $(impl $crate::border::Handle for $name {
            fn last(&self) -> &Arc<$crate::border::Last> {
                &self.last
            }
        })*
    };
}
pub(crate) use handles;

/// Runs the function `what`: its result, or the number of its failure, which `last` keeps.
pub(crate) fn run(last: &Last, what: &'static str, body: impl FnOnce() -> Result<c_int>) -> c_int {
    // What a panic leaves behind is behind locks that ignore poison, or is reported as broken with
    // the failure.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => last.note(what, error),
        Err(panic) => last.note(what, Error::Internal(panic_text(panic))),
    }
}

/// Runs the function `what` of a handle.
pub(crate) fn on<H: Handle>(
    handle: Option<&H>,
    what: &'static str,
    body: impl FnOnce(&H) -> Result<c_int>,
) -> c_int {
    match handle {
        Some(handle) => run(handle.last(), what, || body(handle)),
        None => NOWHERE.note(what, NULL_HANDLE),
    }
}

/// Runs the function `what` of a handle, which makes another one: into `out`, which is NULL after a
/// failure.
pub(crate) fn create<H: Handle, T>(
    handle: Option<&H>,
    what: &'static str,
    out: Option<&mut MaybeUninit<*mut T>>,
    body: impl FnOnce(&H) -> Result<T>,
) -> c_int {
    on(handle, what, |handle| place(out, || body(handle)))
}

/// Makes a handle into `out`, which is NULL after a failure.
pub(crate) fn place<T>(
    out: Option<&mut MaybeUninit<*mut T>>,
    make: impl FnOnce() -> Result<T>,
) -> Result<c_int> {
    let out = out.ok_or(NULL_OUT)?.write(std::ptr::null_mut());
    *out = Box::into_raw(Box::new(make()?));
    Ok(HAUL_OK)
}

/// Ends a handle; nothing to do for NULL.
pub(crate) fn destroy<H: Handle>(handle: Option<Box<H>>, what: &'static str) {
    if let Some(handle) = handle {
        let last = Arc::clone(handle.last());
        run(&last, what, || {
            drop(handle);
            Ok(HAUL_OK)
        });
    }
}

const NULL_HANDLE: Error = Error::Argument("the handle is NULL");
pub(crate) const NULL_OUT: Error =
    Error::Argument("there is nowhere to put the result: it is NULL");

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = match panic.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => match panic.downcast_ref::<&str>() {
            Some(text) => (*text).to_owned(),
            None => "a panic without words".to_owned(),
        },
    };
    // Its destructor could panic again.
    std::mem::forget(panic);
    text
}

/// A structure that begins with its `size` and may grow at its end.
///
/// # Safety
/// `repr(C)`, its first field is `size: u32`, every pattern of bits is a value of it, and
/// [`Growing::ROOM_MIN`] is at least 4.
pub unsafe trait Growing: Copy {
    /// What it was in the first version of the interface, bytes. No application has a shorter one.
    const ROOM_MIN: usize;
}

/// None for NULL, which means defaults. What `from` is too short for is as in `defaults`.
///
/// # Errors
/// A size that no version of the structure has, or one with fields that this library does not know
/// in use.
///
/// # Safety
/// NULL, or readable for the bytes of its `size`.
pub(crate) unsafe fn read_growing<T: Growing>(from: *const T, defaults: T) -> Result<Option<T>> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: readable for its size, which no structure lacks.
    let room = unsafe { room(from)? };
    let known = room.min(size_of::<T>());
    let mut value = defaults;
    // SAFETY: `from` is readable for `room` bytes, `value` has `size_of::<T>()`; every pattern of
    // bits is a `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), known)
    };
    // SAFETY: as above.
    let unknown = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), room) };
    if unknown[known..].iter().any(|byte| *byte != 0) {
        return Err(Error::Argument(
            "the structure has fields that this version of the library does not know; install a newer one",
        ));
    }
    Ok(Some(value))
}

/// Fills a structure as far as the application knows it.
///
/// # Errors
/// As [`check_growing`].
///
/// # Safety
/// As [`check_growing`].
pub(crate) unsafe fn write_growing<T: Growing>(out: *mut T, value: &T) -> Result<()> {
    // SAFETY: the same contract.
    let room = unsafe { check_growing(out)? };
    let known = room.min(size_of::<T>());
    let (size, from) = (u32::try_from(known).unwrap_or(0), std::ptr::from_ref(value));
    let out = out.cast::<u8>();
    // SAFETY: `out` is writable for `room` bytes, and another object than `value`.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), out, known) };
    // SAFETY: `known <= room`.
    let rest = unsafe { out.add(known) };
    // SAFETY: as above.
    unsafe { rest.write_bytes(0, room - known) };
    // SAFETY: `size` is the first field.
    unsafe { out.cast::<u32>().write(size) };
    Ok(())
}

/// Whether a structure can be filled; its size.
///
/// # Errors
/// NULL, or a size that no version of the structure has.
///
/// # Safety
/// NULL, or readable and writable for the bytes of its `size`, and aligned.
pub(crate) unsafe fn check_growing<T: Growing>(out: *const T) -> Result<usize> {
    if out.is_null() {
        return Err(NULL_OUT);
    }
    // SAFETY: not NULL, so it has a size.
    unsafe { room(out) }
}

/// # Safety
/// `from` begins with a readable, aligned `size`.
unsafe fn room<T: Growing>(from: *const T) -> Result<usize> {
    // SAFETY: `size` is the first field.
    let size = unsafe { from.cast::<u32>().read() };
    let room = usize::try_from(size).unwrap_or(usize::MAX);
    if room < T::ROOM_MIN || room > ROOM_MAX {
        return Err(Error::Text(format!(
            "size is {room}, and must be {} to {ROOM_MAX}: begin with the structure's …_INIT of haul.h",
            T::ROOM_MIN
        )));
    }
    Ok(room)
}

/// Far more than any structure will ever have: a size beyond it was never set.
const ROOM_MAX: usize = 64 << 10;

fn check_array<T>(is_null: bool, count: usize) -> Result<()> {
    if is_null {
        return Err(Error::Text(format!(
            "an array is NULL, and its length is {count}"
        )));
    }
    let most = isize::MAX as usize / size_of::<T>().max(1);
    haul_verbs::Error::at_most("the length of an array", count as u64, most as u64)?;
    Ok(())
}

/// The elements of a C array.
///
/// # Errors
/// NULL with a count.
///
/// # Safety
/// `count` readable, aligned elements at `start`, which do not change while the slice lives; or no
/// elements.
pub(crate) unsafe fn slice<'a, T>(start: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check_array::<T>(start.is_null(), count)?;
    // SAFETY: the caller's contract; not NULL, and no longer than an object can be.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// The places of a C array that is to be filled.
///
/// # Errors
/// As [`slice()`].
///
/// # Safety
/// `count` writable, aligned places at `start`, which nobody else uses while the slice lives; or
/// none.
pub(crate) unsafe fn places<'a, T>(
    start: *mut T,
    count: usize,
) -> Result<&'a mut [MaybeUninit<T>]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check_array::<T>(start.is_null(), count)?;
    // SAFETY: the caller's contract; not NULL, and no longer than an object can be.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) })
}

/// `timeout_ns` of haul.h: negative is for ever.
pub(crate) fn timeout(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// How many, as functions return it.
pub(crate) fn count(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// As much of `text` as fits, with a NUL behind it; whole characters only.
pub(crate) fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    let mut end = text.len().min(N.saturating_sub(1));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = text[..end].bytes().take_while(|byte| *byte != 0);
    for (place, byte) in out.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    out
}
