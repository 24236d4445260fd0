//! Verbs that take more than a line: trees and files, whose bytes go through rings, and connections.

use std::os::fd::AsFd;

use space_protocol::files::{Connect, FileRead};
use space_protocol::messages::Tree;
use space_protocol::{Failure, Message};

use super::{Core, now};
use crate::child::{self, Needs};
use crate::connect::{self, Connection};
use crate::job::{Job, Purpose, Way};
use crate::ring::Ring;
use crate::{files, sys, tree};

impl Core {
    pub(super) fn tree(&mut self, stream: u32, request: &Tree, put: bool) -> Result<(), Failure> {
        tree::check(request)?;
        let (ring, needs) = self.transfer()?;
        let work = || if put { tree::put(request, &ring) } else { tree::get(request, &ring) };
        let child = child::spawn(&self.held, &mut self.workloads, needs, &[], work)?;
        let way = if put { Way::Into(ring) } else { Way::OutOf(ring) };
        self.start(stream, Purpose::Verb, way, child).map(drop)
    }

    /// A verb that needs nothing but its request, and says all on its report.
    pub(super) fn in_child<T>(&mut self, stream: u32, request: &T, verb: fn(&T) -> Result<Message, Failure>) -> Result<(), Failure> {
        self.configured()?;
        let needs = Needs { inlet: false, outlets: [false; 2] };
        let child = child::spawn(&self.held, &mut self.workloads, needs, &[], || verb(request))?;
        self.start(stream, Purpose::Verb, Way::Pipes, child).map(drop)
    }

    /// The same for one that the host asks for something now and then.
    pub(super) fn asked<T>(&mut self, stream: u32, request: &T, verb: fn(&T) -> Result<Message, Failure>) -> Result<(), Failure> {
        self.configured()?;
        let needs = Needs { inlet: true, outlets: [false; 2] };
        let child = child::spawn(&self.held, &mut self.workloads, needs, &[], || verb(request))?;
        self.start(stream, Purpose::Verb, Way::Asked, child).map(drop)
    }

    pub(super) fn file_read(&mut self, stream: u32, request: &FileRead) -> Result<(), Failure> {
        let (ring, needs) = self.transfer()?;
        let child = child::spawn(&self.held, &mut self.workloads, needs, &[], || files::read(request, &ring))?;
        self.start(stream, Purpose::Verb, Way::OutOf(ring), child).map(Job::speak_first)
    }

    /// A verb that takes bytes through a ring, and their count as a message behind them.
    pub(super) fn written<T>(&mut self, stream: u32, request: &T, verb: fn(&T, &Ring) -> Result<Message, Failure>) -> Result<(), Failure> {
        let (ring, needs) = self.transfer()?;
        let (theirs, ours) = sys::pipe().map_err(|error| child::refusal("make a pipe", &error))?;
        let child = child::spawn(&self.held, &mut self.workloads, needs, &[theirs.as_fd()], || verb(request, &ring))?;
        self.start(stream, Purpose::Verb, Way::Into(ring), child).map(|job| job.take_messages(ours))
    }

    pub(super) fn connect(&mut self, stream: u32, request: &Connect) -> Result<(), Failure> {
        self.configured()?;
        if self.connections.len() >= connect::MOST {
            return Err(Failure::new("no_capacity", format!("{} connections are open already", connect::MOST)));
        }
        let connection = Connection::open(stream, request, now())?;
        let id = self.token();
        connection.watch(&self.epoll, id).map_err(|error| child::refusal("watch a connection", &error))?;
        self.connections.insert(id, connection);
        Ok(())
    }

    pub(super) fn pump_connections(&mut self) {
        let (now, mux, epoll) = (now(), &mut self.mux, &self.epoll);
        self.connections.retain(|id, connection| match connection.pump(mux, epoll, *id, now) {
            None => true,
            Some(outcome) => {
                if let Err(failure) = outcome {
                    mux.reset(connection.stream(), &failure);
                }
                false
            }
        });
    }

    /// A ring, and the bells that its child needs.
    pub(super) fn transfer(&self) -> Result<(Ring, Needs), Failure> {
        self.configured()?;
        let ring = Ring::new().map_err(|error| child::refusal("make room for a transfer", &error))?;
        // Whatever the child takes or has, the daemon wants to hear of.
        let _ = (ring.reader_waits(), ring.writer_waits());
        Ok((ring, Needs { inlet: true, outlets: [true, false] }))
    }
}
