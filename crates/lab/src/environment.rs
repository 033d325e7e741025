//! The environment variables by which others tell the lab something.

/// The folder for everything the lab keeps, instead of the user's cache folder.
pub const LAB_DIRECTORY: &str = "STANDIN_LAB_DIR";

/// A program that loads an image archive into a cluster which the lab does not run, called with the context and the
/// archive.
pub const IMAGE_LOADER: &str = "STANDIN_IMAGE_LOADER";

/// The agent's program, linked statically, when someone has built it already.
pub const STATIC_STANDIND: &str = "STANDIN_STATIC_STANDIND";

/// The folder of the shop's compiled programs, when someone has built them already.
pub const SHOP_PROGRAMS: &str = "STANDIN_SHOP_PROGRAMS";

/// A Node for the storefront's image, where the release's own is too old.
pub const SHOP_NODE: &str = "STANDIN_SHOP_NODE";
