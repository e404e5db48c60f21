//! Credentials: one Secret for each run, ServingCluster and RolloutPool, made once. Secrets are read by name, never listed.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, api::PostParams};
use plan::build;

use crate::{
    apply::ask,
    error::{Error, Result},
};

/// Bytes of a token, before they are written in hex.
const TOKEN_BYTES: usize = 32;

/// The owner's token, made if there is none.
pub async fn ensure(client: &Client, namespace: &str, owner: OwnerReference) -> Result<String> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let name = build::token_secret(&owner.name);
    if let Some(there) = ask(&format!("get Secret {name}"), api.get_opt(&name)).await? {
        return token_of(&there, &owner);
    }
    let uid = owner.uid.clone();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(BTreeMap::from([("app.kubernetes.io/managed-by".into(), "thresh-operator".into())])),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        data: Some(BTreeMap::from([(build::TOKEN_KEY.to_owned(), ByteString(fresh_token()?.into_bytes()))])),
        ..Secret::default()
    };
    match ask(&format!("create Secret {name}"), api.create(&PostParams::default(), &secret)).await {
        Ok(made) => token_of(&made, &owner),
        // Made meanwhile: whose is it?
        Err(error) if error.is_conflict() => {
            let there = ask(&format!("get Secret {name}"), api.get(&name)).await?;
            tracing::debug!(uid, "its Secret was made by somebody faster");
            token_of(&there, &owner)
        }
        Err(error) => Err(error),
    }
}

fn token_of(secret: &Secret, owner: &OwnerReference) -> Result<String> {
    let ours = secret.metadata.owner_references.iter().flatten().any(|one| one.uid == owner.uid);
    let token = secret.data.as_ref().and_then(|data| data.get(build::TOKEN_KEY));
    let token = token.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    token.filter(|_| ours).ok_or_else(|| Error::NameTaken {
        kind: "Secret".into(),
        name: secret.metadata.name.clone().unwrap_or_default(),
        owner: "somebody else".into(),
    })
}

fn fresh_token() -> Result<String> {
    use std::{fmt::Write, io::Read};
    let mut bytes = [0u8; TOKEN_BYTES];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(Error::NoRandomness)?;
    Ok(bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}
