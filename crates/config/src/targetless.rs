//! The settings of a session without a target.

use crate::layers::Resolved;
use crate::settings::{FileMode, MagicSettings};

impl Resolved {
    /// Leaves only DNS and connections to the agent. The agent of such a session is a pod of ours, whose environment, files
    /// and host name are of no use, so those of this machine must stay complete: no magic removes any in favour of a
    /// target's.
    pub fn remove_target(&mut self) {
        let feature = &mut self.settings.feature;
        feature.env.enabled = false;
        feature.fs.mode = FileMode::Local;
        feature.hostname = false;
        self.settings.magic = MagicSettings::OFF;
        for key in [
            "feature.env.enabled",
            "feature.fs.mode",
            "feature.hostname",
            "magic.auto_mount",
            "magic.aws",
            "magic.proxy",
        ] {
            self.origins.set_without_target(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{FileMode, Format, Layers, MagicSurroundings, Surroundings};

    #[test]
    fn without_a_target_everything_but_the_network_is_local() {
        for text in ["{}", "{magic: true, feature: {fs: write, env: true}}"] {
            let layers = Layers::new().file("test", text, Format::Yaml);
            let mut resolved = layers.resolve().unwrap();
            resolved.remove_target();
            assert!(!resolved.needs_empty_folder());
            resolved.add_magic(&Surroundings::default(), &MagicSurroundings::default());
            let feature = &resolved.settings.feature;
            assert_eq!(feature.fs.mode, FileMode::Local);
            assert!(feature.fs.mapping.is_empty());
            assert!(feature.env.unset_local.is_empty());
            assert!(!feature.env.enabled && !feature.hostname);
            let effective = resolved.effective();
            let mut lines = effective.iter();
            let magic = lines.find(|line| line.key == "magic.aws").unwrap();
            assert_eq!(magic.value, "false");
            assert_eq!(magic.reason(), "the session has no target");
        }
    }
}
