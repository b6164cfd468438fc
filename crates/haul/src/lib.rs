//! Files across long fat networks: sessions, integrity, resume
