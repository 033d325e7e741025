//! Every environment variable that the lab reads.

/// The folder for everything the lab keeps, instead of the user's cache folder.
pub const LAB_DIRECTORY: &str = "STANDIN_LAB_DIR";
