//! Errors of the system as people read them.

use std::io;

/// Returns the error's text without the number that `io::Error` appends.
#[must_use]
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_error_is_left_out() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(plain(&error), "no such file or directory");
        assert_eq!(plain(&io::Error::other("Own text")), "Own text");
    }
}
