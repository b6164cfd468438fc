//! TCP: sockets, sendfile, splice, MSG_ZEROCOPY.
