import { mount } from 'svelte'
import App from './App.svelte'
import './theme.css'
import { session } from './session.svelte'
import { theme } from './theme.svelte'

theme.start()
void session.start()
mount(App, { target: document.getElementById('app')! })
