//! The environment variables that configure the lab.

/// The folder for all files of the lab, instead of the user's cache folder.
pub const LAB_DIRECTORY: &str = "STANDIN_LAB_DIR";

/// A program that loads an image archive into a cluster that the lab does not run. Its arguments are the context and the
/// archive.
pub const IMAGE_LOADER: &str = "STANDIN_IMAGE_LOADER";

/// The statically linked agent, if it is already built.
pub const STATIC_STANDIND: &str = "STANDIN_STATIC_STANDIND";

/// The folder of the shop's compiled programs, if they are already built.
pub const SHOP_PROGRAMS: &str = "STANDIN_SHOP_PROGRAMS";

/// A Node.js binary for the storefront's image, where the distribution's own is too old.
pub const SHOP_NODE: &str = "STANDIN_SHOP_NODE";
