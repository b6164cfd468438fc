//! The movers: what each needs, its server on host `b`, and its command on host `a`.

use std::ffi::OsString;
use std::path::Path;

use super::sets::Set;
use crate::compare::programs::in_path;
use crate::sshd;

/// A program, as it is usually called for a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mover {
    /// As `--movers` and the results name it.
    pub(super) name: &'static str,
    /// It is ours.
    pub(super) is_ours: bool,
    needs: &'static [&'static str],
    pub(super) server: Server,
    pub(super) direction: Direction,
    script: &'static str,
}

/// The command on host `b` before the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Sshd,
    /// Listens on the port. Where it ends by itself, the clock runs until it has.
    Script {
        script: &'static str,
        port: u16,
        ends: bool,
    },
}

/// Where the data goes: most move it from `a` to `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Push,
    Pull,
}

/// Where everything is in one run.
#[derive(Debug)]
pub(super) struct Site<'a> {
    /// The working directory of the measurement: `sets` and `targets` are in it.
    pub(super) work: &'a Path,
    pub(super) source: &'a Path,
    /// The parent directory of the copy.
    pub(super) target: &'a Path,
    /// Of the lab: configurations and keys.
    pub(super) scratch: &'a Path,
    pub(super) haul: &'a Path,
    pub(super) set: Set,
}

/// The mover that others are compared with.
pub(super) const OURS: &str = "haul-send";

/// The mover of ours that others are compared with on a set.
pub(super) const fn ours(set: Set) -> &'static str {
    match set {
        Set::Single => "haul-ssh",
        Set::Changed => "haul-delta",
        _ => OURS,
    }
}

/// Variables of all scripts; their arguments are made by [`Site::line`].
const PREAMBLE: &str = r#"
haul=$1 work=$2 source=$3 target=$4 scratch=$5 sparse=$6
name=$(basename "$source")
config=$scratch/ssh_config
"#;

const SERVE_SEALED: Server = Server::Script {
    script: r#"exec "$haul" serve --quiet --listen "$LAB_B" --shared-key "$work/shared.pem" "$work""#,
    port: 4725,
    ends: false,
};
const SERVE_PLAIN: Server = Server::Script {
    script: r#"exec "$haul" serve --quiet --listen "$LAB_B" --allow-insecure "$work""#,
    port: 4725,
    ends: false,
};
const GRIDFTP: Server = Server::Script {
    script: r#"GLOBUS_HOSTNAME=$LAB_B exec globus-gridftp-server -aa -anonymous-user "$(id -un)" -allow-root \
  -p 2811 -control-interface "$LAB_B" -data-interface "$LAB_B""#,
    port: 2811,
    ends: false,
};
const UNPACK: Server = Server::Script {
    script: r#"nc -l "$LAB_B" 5500 | tar -C "$target" $sparse -xpf -"#,
    port: 5500,
    ends: true,
};

/// All of them. On each set the first is ours: the limit of the others' time follows from it.
pub(super) const ALL: [Mover; 15] = [
    Mover {
        name: OURS,
        is_ours: true,
        needs: &[],
        server: SERVE_SEALED,
        direction: Direction::Push,
        script: r#"exec "$haul" send --quiet --shared-key "$work/shared.pem" "$source" "haul://$LAB_B/${target#"$work"/}/""#,
    },
    Mover {
        name: "haul-send-plain",
        is_ours: true,
        needs: &[],
        server: SERVE_PLAIN,
        direction: Direction::Push,
        script: r#"exec "$haul" send --quiet --allow-insecure "$source" "haul://$LAB_B/${target#"$work"/}/""#,
    },
    Mover {
        name: "haul-get",
        is_ours: true,
        needs: &[],
        server: SERVE_SEALED,
        direction: Direction::Pull,
        script: r#"exec "$haul" get --quiet --shared-key "$work/shared.pem" "haul://$LAB_B/sets/$name" "$target/""#,
    },
    Mover {
        name: "haul-get-plain",
        is_ours: true,
        needs: &[],
        server: SERVE_PLAIN,
        direction: Direction::Pull,
        script: r#"exec "$haul" get --quiet --allow-insecure "haul://$LAB_B/sets/$name" "$target/""#,
    },
    Mover {
        name: "haul-delta",
        is_ours: true,
        needs: &[],
        server: SERVE_SEALED,
        direction: Direction::Push,
        script: r#"exec "$haul" sync --quiet --delta --shared-key "$work/shared.pem" "$source" "haul://$LAB_B/${target#"$work"/}/""#,
    },
    Mover {
        name: "haul-ssh",
        is_ours: true,
        needs: &["ssh"],
        server: Server::Sshd,
        direction: Direction::Push,
        script: r#"
mkdir "$target/$name"
exec "$haul" send --quiet --ssh "ssh -F $config" --remote-haul "$haul" "$source/file" "b:$target/$name/"
"#,
    },
    Mover {
        name: "rsync-ssh",
        is_ours: false,
        needs: &["rsync", "ssh"],
        server: Server::Sshd,
        direction: Direction::Push,
        script: r#"exec rsync -a $sparse -e "ssh -F $config" "$source" "b:$target/""#,
    },
    Mover {
        name: "tar-nc",
        is_ours: false,
        needs: &["tar", "nc"],
        server: UNPACK,
        direction: Direction::Push,
        script: r#"tar -C "$source/.." $sparse -cf - "$name" | nc -N b 5500"#,
    },
    Mover {
        name: "tar-ssh",
        is_ours: false,
        needs: &["tar", "ssh"],
        server: Server::Sshd,
        direction: Direction::Push,
        script: r#"tar -C "$source/.." $sparse -cf - "$name" | ssh -F "$config" b "tar -C '$target' -xpf -""#,
    },
    Mover {
        name: "scp",
        is_ours: false,
        needs: &["scp", "ssh"],
        server: Server::Sshd,
        direction: Direction::Push,
        script: r#"
mkdir "$target/$name"
exec scp -q -p -F "$config" "$source/file" "b:$target/$name/"
"#,
    },
    Mover {
        name: "scp-8",
        is_ours: false,
        needs: &["scp", "ssh"],
        server: Server::Sshd,
        direction: Direction::Push,
        script: r#"
cd "$source"
mkdir "$target/$name"
count=$(find . -mindepth 1 -maxdepth 1 | wc -l)
find . -mindepth 1 -maxdepth 1 -print0 |
  xargs -0 -P 8 -n $(((count + 7) / 8)) sh -c 'scp -q -r -p -F "$0" "$@" "b:$COPY/"' "$config"
"#,
    },
    Mover {
        name: "rclone-sftp-8",
        is_ours: false,
        needs: &["rclone", "ssh"],
        server: Server::Sshd,
        direction: Direction::Push,
        script: r#"
exec rclone copy --config "$scratch/rclone.conf" --transfers 8 --checkers 8 --skip-links --create-empty-src-dirs \
  "$source" ":sftp,host=b,port=2222,user=root,key_file='$scratch/ssh_key':$target/$name"
"#,
    },
    Mover {
        name: "lftp-8",
        is_ours: false,
        needs: &["lftp", "ssh"],
        server: Server::Sshd,
        direction: Direction::Pull,
        script: r#"
export HOME=$scratch
exec lftp -c "set sftp:auto-confirm yes; set sftp:connect-program 'ssh -a -x -F $config'
open -u root,none sftp://b
mirror --parallel=8 --use-pget-n=8 '$source' '$target/$name'"
"#,
    },
    Mover {
        name: "globus-8",
        is_ours: false,
        needs: &["globus-url-copy", "globus-gridftp-server"],
        server: GRIDFTP,
        direction: Direction::Push,
        script: r#"
exec globus-url-copy -q -r -cd -fast -pp -cc 8 -p 4 "file://$source/" "ftp://$LAB_B:2811$target/$name/"
"#,
    },
    Mover {
        name: "qcp",
        is_ours: false,
        needs: &["qcp", "ssh"],
        server: Server::Sshd,
        direction: Direction::Push,
        script: r#"exec qcp -r --ssh-options=-F --ssh-options="$config" "$source" "b:$target/""#,
    },
];

impl Mover {
    /// The movers of these names; all of them if there are none.
    pub(super) fn named(names: &[String]) -> Result<Vec<Self>, String> {
        if names.is_empty() {
            return Ok(ALL.to_vec());
        }
        let find = |name: &String| {
            let found = ALL.into_iter().find(|mover| mover.name == name);
            found.ok_or_else(|| {
                let all: Vec<&str> = ALL.iter().map(|mover| mover.name).collect();
                format!(
                    "--movers does not know `{name}`: choose from {}",
                    all.join(", ")
                )
            })
        };
        names.iter().map(find).collect()
    }

    /// Whether a set is meant for it.
    pub(super) fn moves(&self, set: Set) -> bool {
        match set {
            Set::Single => ["haul-ssh", "scp"].contains(&self.name),
            Set::Changed => ["haul-delta", "rsync-ssh"].contains(&self.name),
            _ => !["haul-ssh", "scp", "haul-delta"].contains(&self.name),
        }
    }

    /// Whether it leaves what the target has.
    fn compares(&self) -> bool {
        self.is_ours || ["rsync-ssh", "rclone-sftp-8", "lftp-8"].contains(&self.name)
    }

    /// Why it cannot move a set here, if so.
    pub(super) fn missing(&self, set: Set) -> Option<String> {
        if set == Set::Again && !self.compares() {
            return Some("copies what is there again".to_owned());
        }
        let program = |name: &str| {
            let server = Path::new("/usr/sbin").join(name);
            in_path(name).or_else(|| server.is_file().then_some(server))
        };
        let missing = self.needs.iter().find(|name| program(name).is_none());
        missing
            .map(|name| format!("not installed: {name}"))
            .or_else(|| sshd::missing().filter(|_| self.server == Server::Sshd))
    }

    /// Its command on host `a`.
    pub(super) fn client(&self, site: &Site<'_>) -> Vec<OsString> {
        site.line(self.script)
    }
}

impl Site<'_> {
    /// A script with its variables. A failure in a pipe fails the script.
    pub(super) fn line(&self, script: &str) -> Vec<OsString> {
        let sparse = if self.set == Set::Sparse { "-S" } else { "" };
        let mut line: Vec<OsString> = ["bash", "-euo", "pipefail", "-c"].map(Into::into).into();
        line.push(format!("{PREAMBLE}export COPY=$target/$name\n{script}\n").into());
        let paths = [self.haul, self.work, self.source, self.target, self.scratch];
        line.push("mover".into());
        line.extend(paths.map(|path| path.as_os_str().to_owned()));
        line.push(sparse.into());
        line
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn movers_have_names_and_ours_comes_first() {
        assert_eq!(ALL[0].name, OURS);
        let all = Mover::named(&[]).unwrap();
        let names: std::collections::BTreeSet<_> = all.iter().map(|mover| mover.name).collect();
        assert_eq!(names.len(), ALL.len());
        for set in Set::value_variants() {
            let movers: Vec<_> = ALL.iter().filter(|mover| mover.moves(*set)).collect();
            // Ours before the peers, which end at ten times its time.
            assert_eq!(movers[0].name, ours(*set));
            assert!(movers.iter().any(|mover| !mover.is_ours), "{set:?}");
        }
        assert_eq!(Mover::named(&["tar-nc".into()]).unwrap()[0].name, "tar-nc");
        let error = Mover::named(&["ftp".into()]).unwrap_err();
        assert!(
            error.contains("`ftp`") && error.contains("rsync-ssh"),
            "{error}"
        );
    }
}
