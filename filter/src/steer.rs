//! Tells Envoy where a request goes, and the engine what its model is called.

use weighbridge_routing::api_error::ApiError;
use weighbridge_routing::live::Admitted;
use weighbridge_routing::request::Request;
use weighbridge_routing::snapshot::Pool;

use crate::host::{self, Buffer, Headers};

pub(crate) const CLUSTER_HEADER: &str = "x-weighbridge-cluster";
pub(crate) const HOST_HEADER: &str = "x-weighbridge-host";

/// Sets the headers that Envoy routes by.
pub(crate) fn steer(pool: &Pool, admitted: &Admitted) -> Result<(), host::HostError> {
    let mut hosts = String::with_capacity(80);
    for endpoint in admitted.pick.hosts.iter().filter_map(|place| pool.endpoints.get(*place)) {
        if !hosts.is_empty() {
            hosts.push(',');
        }
        hosts.push_str(&endpoint.address);
    }
    host::set_header(Headers::Request, CLUSTER_HEADER, &pool.cluster)?;
    host::set_header(Headers::Request, HOST_HEADER, &hosts)
}

/// Puts the engine's own name of the model into the body, where the client used another.
pub(crate) fn rename(pool: &Pool, request: &Request, body_size: usize) -> Result<(), ApiError> {
    let name = pool.engine_name(&request.model);
    if name == request.model {
        return Ok(());
    }
    let Some(span) = request.model_span else { return Err(ApiError::not_renamed(&request.model, name)) };
    replace(name, span, body_size).map_err(|host::HostError(status)| {
        host::log(host::Level::Error, &format!("weighbridge: Envoy did not take a changed body: status {status}"));
        ApiError::not_configured()
    })
}

/// Replaces a string value in the buffered body.
fn replace(text: &str, (from, to): (u64, u64), body_size: usize) -> Result<(), host::HostError> {
    let mut body = host::buffer(Buffer::RequestBody, 0, body_size).ok_or(host::HostError(1))?;
    let (from, to) = (from as usize, to as usize);
    if body.get(from..to).is_none() {
        return Err(host::HostError(2));
    }
    // In place: a second copy of 16 MB would be memory that the VM never gives back.
    drop(body.splice(from..to, serde_json::Value::from(text).to_string().into_bytes()));
    host::set_buffer(Buffer::RequestBody, &body)?;
    // A chunked body has no length, and needs none.
    if host::header(Headers::Request, "content-length").is_some() {
        host::set_header(Headers::Request, "content-length", &body.len().to_string())?;
    }
    Ok(())
}
