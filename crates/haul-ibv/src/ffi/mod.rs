//! What this crate uses of libibverbs and librdmacm, as C declares it.
//!
//! `verbs` and `cm` hold the structures that cross the border and the functions behind it, as far
//! as they are used here. Of a structure that only the library allocates, the front part is enough;
//! such a structure is marked as a prefix. `rdma-core` keeps these layouts stable within the SONAME
//! (the files `libibverbs/libibverbs.map.in` and `librdmacm/librdmacm.map` of its source);
//! assertions pin every one, and the tests compare them with what a C compiler makes of the
//! installed headers.

pub(crate) mod cm;
pub(crate) mod verbs;

#[cfg(test)]
mod tests;

/// One structure as Rust lays it out.
#[cfg(test)]
#[derive(Debug)]
struct Layout {
    /// The type in C.
    c_type: &'static str,
    /// `None` for a prefix, of which only the front is declared.
    size: Option<usize>,
    /// Member in C, offset, size.
    fields: &'static [(&'static str, usize, usize)],
}

#[cfg(test)]
/// The size of the member that a closure points at.
const fn member_size<S, M>(_: fn(&S) -> &M) -> usize {
    size_of::<M>()
}

/// Pins sizes and offsets, and makes the table of them.
///
/// `Rust = "c type" SIZE { field "member" OFFSET, … }`; instead of the size, `prefix` where only
/// the front is declared.
macro_rules! layouts {
    ($($rust:ident = $c:literal $size:tt { $($field:ident $member:literal $offset:literal),+ $(,)? })+) => {
        $(
            $(const _: () = assert!(std::mem::offset_of!($rust, $field) == $offset, $c);)+
            $crate::ffi::layouts!(@pin $rust $c $size);
        )+
        #[cfg(test)]
        pub(super) const LAYOUTS: &[$crate::ffi::Layout] = &[$($crate::ffi::Layout {
            c_type: $c,
            size: $crate::ffi::layouts!(@size $rust $size),
            fields: &[$((
                $member,
                std::mem::offset_of!($rust, $field),
                $crate::ffi::member_size(|it: &$rust| &it.$field),
            )),+],
        }),+];
    };
    (@pin $rust:ident $c:literal prefix) => {};
    (@pin $rust:ident $c:literal $size:literal) => {
        const _: () = assert!(size_of::<$rust>() == $size, $c);
    };
    (@size $rust:ident prefix) => { None };
    (@size $rust:ident $size:literal) => { Some(size_of::<$rust>()) };
}
pub(crate) use layouts;

/// Declares the functions of a library, found by name when it is loaded.
macro_rules! functions {
    (
        $(#[$meta:meta])*
        $name:ident from $library:literal {
            $($(#[$doc:meta])* fn $function:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(crate) struct $name {
            $($(#[$doc])* pub(crate) $function: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)+
            /// Keeps the functions above where they are.
            _library: libloading::Library,
        }

        impl $name {
            /// Loads the library and finds every function.
            pub(crate) fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the library is a system library whose initialisers are safe to run at any
                // time.
                let library = unsafe { libloading::Library::new($library)? };
                Ok(Self {
                    $(
                        // SAFETY: the declaration is that of the library's header; of the
                        // structures, the tests check it.
                        $function: *unsafe {
                            library.get::<unsafe extern "C" fn($($argument: $type),*) $(-> $result)?>(
                                concat!(stringify!($function), "\0").as_bytes(),
                            )?
                        },
                    )+
                    _library: library,
                })
            }
        }
    };
}
pub(crate) use functions;
