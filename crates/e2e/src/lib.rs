//! Stories told against the lab.
