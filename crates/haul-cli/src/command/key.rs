//! `haul key`.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use haul::fault::{Code, Fault};
use haul::printable;
use haul_control::identity::{PrivateKey, PublicKey};

use super::fail;
use crate::args::trust::{Key, KeyFile};
use crate::operand::{Remote, Way};
use crate::output::tell;
use crate::place;

/// Makes, shows, trusts or forgets keys.
pub(crate) fn run(key: Key) -> ExitCode {
    let result = match key {
        Key::New(file) => path(&file).and_then(|path| {
            let key = place::find_or_make(&path)?;
            show(key.public());
            Ok(())
        }),
        Key::Show(file) => path(&file).and_then(|path| {
            show(read(&path, &file)?.public());
            Ok(())
        }),
        Key::Trust(trust) => server(&trust.server).and_then(|(host, port)| {
            place::known_servers()?.trust(&host, port, trust.key)?;
            tell(&format!(
                "{} is trusted with {}",
                haul_control::known::name(&host, port),
                trust.key.fingerprint()
            ));
            Ok(())
        }),
        Key::Forget(forget) => server(&forget.server).and_then(|(host, port)| {
            let name = haul_control::known::name(&host, port);
            if place::known_servers()?.forget(&host, port)? {
                tell(&format!("{name} is forgotten"));
                return Ok(());
            }
            Err(Fault::new(
                Code::Usage,
                format!("{name} is no known server"),
            ))
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault),
    }
}

fn path(file: &KeyFile) -> Result<PathBuf, Fault> {
    match &file.key {
        Some(path) => Ok(path.clone()),
        None if file.server => place::of_server(place::KEY),
        None => place::of_client(place::KEY),
    }
}

fn read(path: &std::path::Path, named: &KeyFile) -> Result<PrivateKey, Fault> {
    PrivateKey::read(path).map_err(|fault| match fault.code {
        Code::FileNotFound => Fault::new(
            fault.code,
            format!(
                "there is no key '{}'",
                printable(path.as_os_str().as_encoded_bytes())
            ),
        )
        .hint(match named {
            KeyFile { server: true, .. } => "make one with 'haul key new --server'",
            KeyFile { key: Some(_), .. } => "make one with 'haul key new --key' and this name",
            KeyFile { key: None, .. } => "make one with 'haul key new'",
        }),
        _ => fault,
    })
}

fn show(key: PublicKey) {
    tell(&format!("fingerprint {}", key.fingerprint()));
    // Whoever reads stdout may have gone.
    let _ = std::io::Write::write_all(&mut std::io::stdout().lock(), format!("{key}\n").as_bytes());
}

fn server(operand: &OsStr) -> Result<(String, u16), Fault> {
    if let Ok(Remote {
        way: Way::Server { host, port },
        ..
    }) = Remote::parse(operand)
    {
        return Ok((host, port.unwrap_or(haul::DEFAULT_PORT)));
    }
    let shown = printable(operand.as_encoded_bytes());
    let text = format!("'{shown}' is not haul://HOST or haul://HOST:PORT");
    Err(Fault::new(Code::Usage, text)
        .hint("only standing servers have a key to trust; ssh has its own known_hosts"))
}
