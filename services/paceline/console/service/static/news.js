// Tells a page that the server has something new. Only one tab of a browser holds the event stream, because a browser
// allows six connections to a server; it passes the news to the other tabs.
export function news(onNews, tell) {
  const channel = new BroadcastChannel("paceline-news");
  channel.onmessage = onNews;
  const listen = () => {
    const stream = new EventSource("/stream");
    stream.onmessage = (event) => {
      tell(JSON.parse(event.data).trouble);
      onNews();
      channel.postMessage("news");
    };
    stream.onerror = () => tell("The picture is old: the console does not answer.");
  };
  // The lock is held until the tab is closed; then the next tab gets it.
  if (navigator.locks) navigator.locks.request("paceline-news", () => new Promise(listen));
  else listen();
}
