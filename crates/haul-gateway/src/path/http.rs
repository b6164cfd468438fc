//! A service that is asked over HTTP. It gets the request as JSON, and responds with a state.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_io::notify::Signal;
use haul_xsp::wire::PathState;
use serde::Deserialize;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Error};

use super::request::{Action, Outcome, Patience, Request, outcome, state_of, words};

/// Longest response, bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Polling interval of a pending request, ns.
const AGAIN_NS: u64 = 2_000_000_000;
/// Timeout of one response, which may be that the request is pending.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Service {
    agent: Agent,
    url: String,
    timeout: Duration,
}

#[derive(Deserialize)]
struct Answer {
    state: String,
    #[serde(default)]
    text: String,
}

impl Service {
    pub(super) fn new(url: &str, roots: Option<&Path>, timeout: Duration) -> Result<Self, String> {
        let is_safe = url.starts_with("https://");
        if !is_safe && !url.starts_with("http://") {
            return Err(format!(
                "[path] url = '{url}' must begin with http:// or https://"
            ));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(timeout.min(ANSWER)));
        let config = match roots {
            Some(roots) if is_safe => config.tls_config(tls(roots)?),
            None if is_safe => {
                return Err(
                    "[path] with https needs `roots`: a PEM file with the roots to trust"
                        .to_owned(),
                );
            }
            _ => config,
        };
        Ok(Self {
            agent: config.build().into(),
            url: url.to_owned(),
            timeout,
        })
    }

    /// Sends a request, and polls while it is pending.
    pub(super) fn ask(
        &self,
        request: &Request,
        action: Action,
        end: &Signal,
        tell: &mut dyn FnMut(PathState, &str),
    ) -> Outcome {
        let patience = Patience::new(end, self.timeout);
        let mut now = action;
        let mut said = None;
        loop {
            match self.post(&request.octets(now)) {
                Ok((state, text)) => {
                    if said.as_ref() != Some(&(state, text.clone())) {
                        tell(state, &text);
                    }
                    if let Some(outcome) = outcome(action, state) {
                        return outcome;
                    }
                    said = Some((state, text));
                }
                Err(why) => {
                    tell(PathState::Failed, &why);
                    return Outcome::Unknown;
                }
            }
            now = Action::Query;
            if !patience.pause(AGAIN_NS) {
                if patience.left_ns() == 0 {
                    tell(PathState::Failed, "the service timed out");
                }
                return Outcome::Unknown;
            }
        }
    }

    fn post(&self, asked: &[u8]) -> Result<(PathState, String), String> {
        let failed = |error: Error| format!("{}: {}", self.url, words(&error.to_string()));
        let request = self.agent.post(&self.url).content_type("application/json");
        let mut answer = request.send(asked).map_err(failed)?;
        let status = answer.status();
        let body = answer
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_string();
        let body = body.map_err(failed)?;
        if !status.is_success() {
            return Err(format!("{} responded with {status}", self.url));
        }
        let answer: Option<Answer> = serde_json::from_str(&body).ok();
        answer
            .and_then(|answer| Some((state_of(&answer.state)?, words(&answer.text))))
            .ok_or_else(|| format!("{}: the response is not the state of a path", self.url))
    }
}

fn tls(roots: &Path) -> Result<TlsConfig, String> {
    let name = roots.display();
    let pem = std::fs::read(roots).map_err(|error| format!("{name}: {error}"))?;
    let mut found: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        let item = item.map_err(|error| format!("{name}: {error}"))?;
        if let PemItem::Certificate(certificate) = item {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(format!("{name}: no certificate in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::new_with_certs(&found))
        .build())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::mpsc;

    use super::*;
    use crate::path::request::tests::request;

    /// Runs a service that gives these responses in turn. Returns its URL and the requests.
    fn serve(answers: Vec<&'static str>) -> (String, mpsc::Receiver<String>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/path", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = vec![0; 4096];
                let mut len = 0;
                while !asked[..len].ends_with(b"}]}") {
                    let count = stream.read(&mut asked[len..]).unwrap();
                    assert!(count > 0, "{}", String::from_utf8_lossy(&asked[..len]));
                    len += count;
                }
                sender
                    .send(String::from_utf8_lossy(&asked[..len]).into_owned())
                    .unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (url, requests)
    }

    fn ask(
        answers: Vec<&'static str>,
        timeout: Duration,
    ) -> (Outcome, Vec<(PathState, String)>, Vec<String>) {
        let (url, requests) = serve(answers);
        let service = Service::new(&url, None, timeout).unwrap();
        let mut heard = Vec::new();
        let never = Signal::new().unwrap();
        let outcome = service.ask(&request(), Action::Create, &never, &mut |state, text| {
            heard.push((state, text.to_owned()));
        });
        (outcome, heard, requests.try_iter().collect())
    }

    const UP: &str = "HTTP/1.1 200 OK\r\nContent-Length: 28\r\nConnection: close\r\n\r\n{\"state\":\"up\",\"text\":\"12\"}\n\n";
    const PENDING: &str = "HTTP/1.1 202 Accepted\r\nContent-Length: 19\r\nConnection: close\r\n\r\n{\"state\":\"pending\"}";

    #[test]
    fn it_is_asked_again_until_it_says_how_it_went() {
        let (outcome, heard, requests) = ask(vec![PENDING, UP], Duration::from_secs(60));
        assert_eq!(outcome, Outcome::Done);
        let wanted = [
            (PathState::Pending, String::new()),
            (PathState::Up, "12".to_owned()),
        ];
        assert_eq!(heard, wanted);
        assert!(
            requests[0].starts_with("POST /path HTTP/1.1"),
            "{requests:?}"
        );
        assert!(
            requests[0].contains(r#""action":"create""#)
                && requests[0].contains(r#""type":"vlan""#)
        );
        assert!(requests[1].contains(r#""action":"query""#));
    }

    #[test]
    fn what_is_no_answer_leaves_it_open() {
        for answer in [
            "HTTP/1.1 500 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            "HTTP/1.1 302 x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "nonsense\r\n\r\n",
        ] {
            let (outcome, heard, _) = ask(vec![answer], Duration::from_secs(60));
            assert_eq!(
                (outcome, heard.len(), heard[0].0),
                (Outcome::Unknown, 1, PathState::Failed),
                "{answer}"
            );
        }
        let (outcome, heard, _) = ask(vec![PENDING], Duration::from_secs(1));
        assert!(
            outcome == Outcome::Unknown && heard.last().unwrap().1.contains("timed out"),
            "{heard:?}"
        );
    }

    #[test]
    fn what_cannot_be_asked_is_refused_at_the_start() {
        let refused = |url: &str, roots: Option<&str>| {
            Service::new(url, roots.map(Path::new), ANSWER).unwrap_err()
        };
        assert!(refused("ftp://x", None).contains("http://"));
        assert!(refused("https://x", None).contains("roots"));
        assert!(refused("https://x", Some("/nonexistent.pem")).contains("/nonexistent.pem"));
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert!(refused("https://x", empty.path().to_str()).contains("no certificate"));
    }
}
