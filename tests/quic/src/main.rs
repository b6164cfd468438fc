//! A QUIC stream from memory to memory, by quinn with BBR: what `scripts/trust.py` compares with.
//!
//! ```text
//! quic serve ADDR:PORT CERTIFICATE        writes its certificate, receives until it is killed
//! quic send ADDR:PORT CERTIFICATE BYTES   prints the seconds until all is acknowledged
//! ```
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "measurements are made in real time"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use quinn::congestion::BbrConfig;
use quinn::{ClientConfig, Endpoint, ServerConfig, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Windows above the bandwidth-delay product of every path that is measured, so that they are no
/// limit: 1 Gb/s times 200 ms is 25 MB.
const WINDOW: u32 = 256 << 20;
const NAME: &str = "quic.example";
const PIECE: usize = 1 << 20;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    match args[..] {
        ["serve", address, certificate] => runtime.block_on(serve(address.parse()?, certificate)),
        ["send", address, certificate, bytes] => {
            runtime.block_on(send(address.parse()?, certificate, bytes.parse()?))
        }
        _ => {
            bail!("usage: quic serve ADDR:PORT CERTIFICATE | quic send ADDR:PORT CERTIFICATE BYTES")
        }
    }
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(Arc::new(BbrConfig::default()))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into());
    Arc::new(transport)
}

async fn serve(address: SocketAddr, certificate: &str) -> Result<()> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let key = key.map_err(anyhow::Error::msg)?;
    let mut config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key)?;
    config.transport_config(transport());
    // Who sees the port finds the certificate.
    std::fs::write(certificate, made.cert.der())?;
    let endpoint = Endpoint::server(config, address)?;
    while let Some(incoming) = endpoint.accept().await {
        // One that fails is the sender's to report.
        let _ = receive(incoming).await;
    }
    Ok(())
}

async fn receive(incoming: quinn::Incoming) -> Result<()> {
    let connection = incoming.await?;
    let mut stream = connection.accept_uni().await?;
    while stream.read_chunk(PIECE, true).await?.is_some() {}
    connection.closed().await;
    Ok(())
}

async fn send(address: SocketAddr, certificate: &str, bytes: u64) -> Result<()> {
    let mut roots = RootCertStore::empty();
    let der = std::fs::read(certificate).with_context(|| format!("cannot read {certificate}"))?;
    roots.add(CertificateDer::from(der))?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(transport());
    let endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
    let connection = endpoint.connect_with(config, address, NAME)?.await?;
    let mut stream = connection.open_uni().await?;
    let memory = vec![0; PIECE];
    let (begun, mut left) = (Instant::now(), bytes);
    while left > 0 {
        let piece = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        stream.write_all(&memory[..piece]).await?;
        left -= piece as u64;
    }
    stream.finish()?;
    stream.stopped().await?;
    println!("{}", begun.elapsed().as_secs_f64());
    connection.close(VarInt::from_u32(0), b"");
    endpoint.wait_idle().await;
    Ok(())
}
