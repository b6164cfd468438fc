//! Network and user namespaces.
