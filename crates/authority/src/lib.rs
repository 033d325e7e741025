//! The project's certificate authority: creates it, signs certificates with it, and decides when to renew them.
