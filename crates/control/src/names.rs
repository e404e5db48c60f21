//! Finding Services by name.
//!
//! In a cluster a headless Service is a DNS name with one address per pod. On a laptop the node keeps a file of the same
//! content (`THRESH_HOSTS_FILE`, lines of `address name`, several lines per name for a headless Service), read again at each
//! lookup since pods come and go.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Name of the variable that points to the hosts file.
pub const HOSTS_FILE: &str = "THRESH_HOSTS_FILE";

/// Looks names up in the hosts file if there is one, then in DNS.
#[derive(Clone, Debug, Default)]
pub struct Names {
    hosts: Option<PathBuf>,
}

impl Names {
    /// From the environment of this process.
    #[must_use]
    pub fn from_env() -> Self {
        Self { hosts: std::env::var_os(HOSTS_FILE).map(PathBuf::from) }
    }

    /// With this hosts file.
    #[must_use]
    pub fn with_hosts(hosts: impl Into<PathBuf>) -> Self {
        Self { hosts: Some(hosts.into()) }
    }

    /// All addresses of `host`, sorted, without duplicates; empty when the name is not known (a Service without pods).
    ///
    /// # Errors
    /// When DNS cannot be asked.
    pub async fn lookup(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let mut found = self.in_hosts_file(host);
        if found.is_empty() && self.hosts.is_none() {
            match tokio::net::lookup_host((host, 0)).await {
                Ok(addresses) => found = addresses.map(|address| address.ip()).collect(),
                // A headless Service without pods has no record at all.
                Err(error) if is_unknown_name(&error) => {}
                Err(error) => return Err(error),
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// All addresses of `host:port`.
    ///
    /// # Errors
    /// When DNS cannot be asked, or the text has no port.
    pub async fn lookup_endpoint(&self, endpoint: &str) -> std::io::Result<Vec<SocketAddr>> {
        let (host, port) =
            endpoint.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))).ok_or_else(
                || std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("{endpoint}: expected name:port")),
            )?;
        Ok(self.lookup(host).await?.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    fn in_hosts_file(&self, host: &str) -> Vec<IpAddr> {
        let Some(text) = self.hosts.as_ref().and_then(|path| std::fs::read_to_string(path).ok()) else {
            return Vec::new();
        };
        text.lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let address = words.next()?.parse().ok()?;
                words.any(|name| name == host).then_some(address)
            })
            .collect()
    }
}

fn is_unknown_name(error: &std::io::Error) -> bool {
    // getaddrinfo's EAI_NONAME and EAI_NODATA reach us only as text.
    let text = error.to_string();
    text.contains("not known") || text.contains("No address associated")
}

struct ByNames(Names);

impl Resolve for ByNames {
    fn resolve(&self, name: Name) -> Resolving {
        let names = self.0.clone();
        Box::pin(async move {
            let found = names.lookup(name.as_str()).await?;
            if found.is_empty() {
                return Err(format!("no address for {}", name.as_str()).into());
            }
            Ok(Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

/// An HTTP client that finds hosts as [`Names`] does, with a bounded time to connect. Callers set their own time-outs per request.
///
/// # Errors
/// When the client cannot be built.
pub fn http_client(names: Names) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .dns_resolver(Arc::new(ByNames(names)))
        .connect_timeout(std::time::Duration::from_secs(5))
        .pool_idle_timeout(std::time::Duration::from_secs(4))
        .tcp_nodelay(true)
        .no_proxy()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_headless_service_is_all_lines_that_name_it() {
        let file = std::env::temp_dir().join(format!("thresh-hosts-{}", std::process::id()));
        std::fs::write(
            &file,
            "127.77.0.3 job-serving job-serving-1.job-serving\n127.77.0.2 job-serving\n127.77.0.9 other\n",
        )
        .unwrap();
        let names = Names::with_hosts(&file);
        let found = names.lookup_endpoint("job-serving:30000").await.unwrap();
        assert_eq!(found, ["127.77.0.2:30000".parse().unwrap(), "127.77.0.3:30000".parse().unwrap()]);
        assert_eq!(names.lookup("job-serving-1.job-serving").await.unwrap(), ["127.77.0.3".parse::<IpAddr>().unwrap()]);
        assert!(names.lookup("unknown").await.unwrap().is_empty());
        std::fs::write(&file, "127.77.0.4 job-serving\n").unwrap();
        assert_eq!(names.lookup("job-serving").await.unwrap(), ["127.77.0.4".parse::<IpAddr>().unwrap()]);
        std::fs::remove_file(file).unwrap();
    }
}
