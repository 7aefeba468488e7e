//! `-o`: the options of the older virtiofsd, written in C.

use clap::ValueEnum;

use super::args::{Level, Sandbox, VirtiofsdArgs};
use crate::serve::args::virtiofs::{Cache, Negotiate};

impl VirtiofsdArgs {
    /// Applies the options of `-o`, which override the long options that they correspond to.
    pub(crate) fn apply_compat(&mut self) -> Result<(), String> {
        std::mem::take(&mut self.compat)
            .iter()
            .try_for_each(|option| {
                self.apply(option)
                    .map_err(|expected| format!("-o {option}: {expected}"))
            })
    }

    fn apply(&mut self, option: &str) -> Result<(), String> {
        let bad = |expected: &str| Err(format!("expected {expected}"));
        let negotiate = |wanted| match wanted {
            true => Negotiate::Always,
            false => Negotiate::Never,
        };
        let Some((name, value)) = option.split_once('=') else {
            let (name, yes) = match option.strip_prefix("no_") {
                Some(name) => (name, false),
                None => (option, true),
            };
            match name {
                "xattr" => self.xattr = yes,
                "readdirplus" => self.no_readdirplus = !yes,
                "writeback" => self.writeback = yes,
                "allow_direct_io" => self.allow_direct_io = yes,
                "announce_submounts" if yes => self.no_announce_submounts = false,
                "killpriv_v2" => self.no_killpriv_v2 = !yes,
                "posix_acl" => self.posix_acl = negotiate(yes),
                "security_label" => self.security_label = negotiate(yes),
                "posix_lock" => self.posix_lock = yes,
                "flock" => self.flock = yes,
                _ => return bad("an option of virtiofsd"),
            }
            return Ok(());
        };
        match name {
            "source" => self.shared_dir = Some(value.into()),
            "xattrmap" => self.xattrmap = Some(value.parse().map_err(|bad| format!("{bad}"))?),
            "modcaps" => self.modcaps = value.parse()?,
            "cache" => match value {
                "none" => self.cache = Cache::Never,
                "auto" | "always" | "metadata" => self.cache = Cache::from_str(value, false)?,
                _ => return bad("none, auto, always or metadata"),
            },
            "loglevel" => match value {
                "err" => self.log_level = Level::Error,
                "warn" | "info" | "debug" => self.log_level = Level::from_str(value, false)?,
                _ => return bad("err, warn, info or debug"),
            },
            "sandbox" => match value {
                "namespace" | "chroot" => self.sandbox = Some(Sandbox::from_str(value, false)?),
                _ => return bad("namespace or chroot"),
            },
            _ => return bad("an option of virtiofsd"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: VirtiofsdArgs,
    }

    fn parsed(options: &str) -> Result<VirtiofsdArgs, String> {
        let line = ["virtiofsd", "--fd=3", "--cache=auto", "-o", options];
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        let mut args = line.args;
        args.apply_compat().map(|()| args)
    }

    /// libvirt's options for a virtiofsd without `separate-options`.
    #[test]
    fn options_stand_for_those_of_today() {
        let args = parsed(
            "source=/srv,cache=always,xattr,sandbox=chroot,posix_lock,no_flock,announce_submounts,\
             loglevel=err,modcaps=+sys_admin,no_readdirplus,writeback,no_killpriv_v2,posix_acl",
        )
        .expect("options");
        assert_eq!(args.shared_dir.as_deref(), Some(Path::new("/srv")));
        assert!(args.cache == Cache::Always && args.sandbox == Some(Sandbox::Chroot));
        assert!(args.xattr && args.posix_lock && !args.flock && args.no_readdirplus);
        assert!(args.writeback && args.no_killpriv_v2 && !args.no_announce_submounts);
        assert!(args.log_level == Level::Error && args.posix_acl == Negotiate::Always);
        assert_eq!(Ok(args.modcaps), "+sys_admin".parse());
        let mapped = parsed("source=/srv,xattrmap=:map::user.virtiofs.:").expect("options");
        assert!(mapped.xattrmap.is_some());
    }

    #[test]
    fn what_is_none_is_named() {
        for option in [
            "nonsense",
            "no_nonsense",
            "no_announce_submounts",
            "cache=never",
            "loglevel=loud",
            "sandbox=none",
            "modcaps=chown",
            "xattrmap=:ok:",
            "nonsense=1",
        ] {
            let told = parsed(&format!("source=/srv,{option}")).map(drop);
            let told = told.expect_err(option);
            assert!(
                told.starts_with(&format!("-o {option}: expected ")),
                "{told}"
            );
        }
    }
}
