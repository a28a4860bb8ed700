//! Keys and authorities of engines are read again as their files change; Envoys hear of it at once.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::Reach;
use crate::engine::access::{Access, May};
use crate::registry::Origin;
use crate::reload::{Read, Reload};
use crate::service::Service;

/// Those of every endpoint that has any.
#[derive(Debug, Clone, Copy)]
pub struct Keys;

impl Reload for Keys {
    fn reload(&self, service: &Service) -> Vec<(String, Result<Read, String>)> {
        let there = service.read(|registry| {
            let all = registry.endpoints();
            let with_files = all.iter().filter(|(_, endpoint)| endpoint.written.reach != Reach::default());
            let there = with_files.map(|(id, endpoint)| {
                (id.clone(), endpoint.address, endpoint.written.clone(), endpoint.origin.clone())
            });
            let needed = all.values().map(|endpoint| endpoint.address).collect::<HashSet<_>>();
            // While nobody can join.
            service.engines.book().retain(|engine| needed.contains(&engine));
            there.collect::<Vec<_>>()
        });
        let read = there.into_iter().map(|(id, address, written, origin)| {
            let may = match origin {
                Origin::File(_) => May::NameAll,
                Origin::Api => service.registrations_may(),
            };
            let read = match Access::read(&written.reach, &written.address, may) {
                Err(error) => Err(format!("{id}: {error}")),
                Ok(access) => Ok(put(service, &id, address, access)),
            };
            (format!("endpoint {id}"), read)
        });
        read.collect()
    }
}

fn put(service: &Service, id: &str, address: SocketAddr, access: Access) -> Read {
    if *service.engines.book().of(address) == access {
        return Read::Same;
    }
    service.change(|registry| {
        // It may have gone or moved meanwhile.
        if registry.get(id).is_ok_and(|endpoint| endpoint.address == address) {
            service.engines.book().set(address, &Arc::new(access));
        }
    });
    Read::Changed
}
