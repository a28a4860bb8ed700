const events = new EventSource("/v1/events");
events.addEventListener("fleet", (event) => {
  document.getElementById("fleet").textContent = JSON.stringify(JSON.parse(event.data), null, 2);
});
