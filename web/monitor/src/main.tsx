import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./app";
import { Store } from "./store";
import "./style.css";

// The server has stored the token in a cookie. It is removed from the URL, so that it is not copied with it.
const address = new URL(location.href);
if (address.searchParams.has("token")) {
  address.searchParams.delete("token");
  history.replaceState(null, "", address.pathname + address.search + address.hash);
}

const store = new Store();
store.connect();

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App store={store} />
    </StrictMode>,
  );
}
