//! Which published sockets still exist. An application reports when it closes one. If it was
//! killed, or shared a socket with others, the kernel's lists show what is left.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::table::Table;

/// The kernel's lists.
const LISTS: [&str; 4] = [
    "/proc/self/net/udp",
    "/proc/self/net/udp6",
    "/proc/self/net/tcp",
    "/proc/self/net/tcp6",
];

/// Takes back what the kernel does not have any more.
pub(crate) fn unpublish_closed(table: &Table) {
    // First the records, then the lists: what is published meanwhile is not looked at.
    let published: Vec<(usize, u64)> = table
        .sockets()
        .filter(|(_, socket)| socket.published.load(Ordering::Acquire) == 1)
        .map(|(at, socket)| (at, socket.inode.load(Ordering::Acquire)))
        .filter(|(_, inode)| *inode != 0)
        .collect();
    if published.is_empty() {
        return;
    }
    let mut inodes = HashSet::new();
    for path in LISTS {
        match std::fs::read_to_string(path) {
            Ok(text) => inodes.extend(text.lines().skip(1).filter_map(inode)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {} // no IPv6 here
            Err(_) => return,
        }
    }
    for (at, inode) in published {
        if let Some(socket) = table.socket(at)
            && !inodes.contains(&inode)
            && socket.inode.load(Ordering::Acquire) == inode
        {
            socket.published.store(0, Ordering::Release);
        }
    }
}

/// The tenth column of a line.
fn inode(line: &str) -> Option<u64> {
    line.split_ascii_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenth_column_is_the_inode() {
        let line = "  406: 00000000:12B9 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0 0";
        assert_eq!(inode(line), Some(4711));
        assert_eq!(inode("sl local_address"), None);
    }
}
