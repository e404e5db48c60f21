//! Pod templates, decoded strictly: the schema does not look into them, so a misspelt field would be kept and ignored.

use api::{PodTemplate, Problem};
use k8s_openapi::api::core::v1::PodTemplateSpec;

/// Variables the operator sets: a template must not.
const RESERVED: [&str; 9] =
    ["NODE_RANK", "NNODES", "NPROC_PER_NODE", "POD_NAME", "POD_UID", "POD_IP", "NODE_NAME", "RANK", "WORLD_SIZE"];
/// Prefixes of such variables.
const RESERVED_PREFIXES: [&str; 2] = ["THRESH_", "MASTER_"];

/// The template as a pod template.
///
/// # Errors
/// When it is not one (see [`problems`] for what is wrong).
pub fn decode(template: &PodTemplate) -> Result<PodTemplateSpec, String> {
    serde_json::from_value(template.0.clone()).map_err(|e| e.to_string())
}

/// What is wrong with the template of a role whose container is `container`, as fields below `path`.
pub fn problems(template: &PodTemplate, container: &str, path: &str) -> Vec<Problem> {
    let (mended, mut found) = template.checked(path);
    match decode(&mended) {
        Err(error) if found.is_empty() => {
            found.push(Problem::new(path, error, "decode", "write it as the template of a pod"))
        }
        Err(_) => {}
        Ok(t) => {
            let spec = t.spec.unwrap_or_default();
            for (i, c) in spec.containers.iter().enumerate() {
                if c.name != container {
                    continue;
                }
                for (j, env) in c.env.iter().flatten().enumerate() {
                    if RESERVED.contains(&env.name.as_str())
                        || RESERVED_PREFIXES.iter().any(|p| env.name.starts_with(p))
                    {
                        found.push(Problem::new(
                            format!("{path}.spec.containers[{i}].env[{j}].name"),
                            format!("{} is set by the operator", env.name),
                            "reserved variable",
                            "use another name",
                        ));
                    }
                }
            }
            let restart = spec.restart_policy.as_deref();
            if container == "trainer" && restart.is_some_and(|r| r != "Never") {
                found.push(Problem::new(
                    format!("{path}.spec.restartPolicy"),
                    format!("`{}` would restart a rank inside its attempt", restart.unwrap_or_default()),
                    "trainer pods never restart",
                    "remove it: a failed rank ends the attempt, and the next attempt begins from the last commit",
                ));
            }
        }
    }
    found
}
